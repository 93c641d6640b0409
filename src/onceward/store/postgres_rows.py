"""Writes as PostgreSQL reads them, and entries and answers from its rows; the layout is that of `postgres_commit.sql`.

A batch is one array of records in PostgreSQL's own notation. Server and client need a third of the time that they take
for the same as JSON.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, assert_never

from onceward.core.claim import FINISHED, MOVES, Answer, Append, Begin, Entry, Move, Ref, Status, Write, apply
from onceward.core.outcome import NOTHING, Outcome
from onceward.errors import StoreUnavailable

_STATUS = {status.value: status for status in Status}


def write_record(n: int, write: Write, at: int, known: str) -> str:
    """A write as `onceward_write_v4`; `at` is where its bytes begin in the data of the batch, `known` the last write of its
    entry, as in `Held`.
    """
    match write:
        case Begin():
            scope, key, write_id, fingerprint, holder, user_id, endpoint = _texts(
                write.scope, write.key, write.write_id, write.fingerprint, write.holder, write.user_id, write.endpoint
            )
            return (
                f'"({n},begin,\\"{scope}\\",\\"{key}\\",\\"{write_id}\\",{write.dead},{write.lease},{write.retain},'
                f'\\"{fingerprint}\\",\\"{holder}\\",{"t" if write.repeatable else "f"},\\"{user_id}\\",\\"{endpoint}\\",,,,,,)"'
            )
        case Move():
            outcome = write.outcome
            scope, key, write_id, note, known = _texts(write.scope, write.key, write.write_id, write.note, known)
            headers = "" if outcome.headers is None else _quoted(*_texts(outcome.headers))
            parts = "" if outcome.body is None else f'\\"{{{at},{at + len(outcome.body)}}}\\"'
            return (
                f'"({n},{write.verb.value},\\"{scope}\\",\\"{key}\\",\\"{write_id}\\",{write.version},{write.lease},'
                f'{write.retain},,,,,,\\"{note}\\",{"" if outcome.code is None else outcome.code},'
                f'{headers},{outcome.chunks},{parts},{_quoted(known) if known else ""})"'
            )
        case Append():
            scope, key, write_id = _texts(write.scope, write.key, write.write_id)
            ends = [at]
            for chunk in write.chunks:
                ends.append(ends[-1] + len(chunk))
            parts = _quoted(f"{{{','.join(map(str, ends))}}}")
            return f'"({n},append,\\"{scope}\\",\\"{key}\\",\\"{write_id}\\",{write.version},,,,,,,,,,,{write.seq - 1},{parts},)"'
        case _:
            assert_never(write)


def read_record(n: int, ref: Ref) -> str:
    scope, key = _texts(*ref)
    return f'"({n},read,\\"{scope}\\",\\"{key}\\",,,,,,,,,,,,,,,)"'


def _texts(*texts: str) -> Sequence[str]:
    """Ready to be quoted as fields of a record, and that as a part of an element of an array. Most are so as they are."""
    together = "".join(texts)
    if "\\" in together or '"' in together:
        return [text.replace("\\", "\\\\\\\\").replace('"', '\\\\\\"') for text in texts]
    return texts


def _quoted(text: str) -> str:
    return f'\\"{text}\\"'


def pieces(write: Write) -> tuple[bytes, ...]:
    """The bytes of a write, which travel beside the records."""
    match write:
        case Begin():
            return ()
        case Move():
            return () if write.outcome.body is None else (write.outcome.body,)
        case Append():
            return write.chunks
        case _:
            assert_never(write)


def answered(rows: Sequence[Sequence[Any]]) -> int:
    """How many writes these rows answer."""
    if not rows or rows[0][0] >= 0:
        return len(rows)
    begun, ended = _brief(rows[0])
    return len(rows) - 1 + len(begun) + len(ended)


def to_answers(
    writes: Sequence[Write], known: Sequence[Entry | None], rows: Sequence[Sequence[Any]]
) -> list[Answer | None]:
    """`known` are the entries as they were remembered, of which the answers leave out what is as it was."""
    answers: list[Answer | None] = [None] * len(writes)
    for row in rows:
        n, now = row[0], row[4]
        if n >= 0:
            answers[n] = _to_answer(row, writes[n])
            continue
        begun, ended = _brief(row)
        for place, version in begun:
            answers[place] = Answer(True, _applied(None, writes[place], now, int(version)), now)
        for place, before in ended:
            answers[place] = Answer(True, _applied(known[place], writes[place], now, 0), now, _STATUS[before])
    return answers


def _brief(row: Sequence[Any]) -> tuple[list[tuple[int, str]], list[tuple[int, str]]]:
    """What the first row says: versions of new entries, and what those that are finished now were before."""
    return _pairs(row[18]), _pairs(row[2])


def _pairs(text: str | None) -> list[tuple[int, str]]:
    words = text.split(" ") if text else []
    return list(zip(map(int, words[::2]), words[1::2], strict=True))


def _applied(before: Entry | None, write: Write, now: int, version: int) -> Entry:
    entry = apply(before, write, now, version)
    if entry is None:
        raise StoreUnavailable("PostgreSQL answered less than it was asked for")
    return entry


def _to_answer(row: Sequence[Any], write: Write) -> Answer:
    _, applied, before, locked, now = row[:5]
    if row[5] is None:
        return Answer(False, None, now)
    entry = to_entry(write.scope, write.key, row[5:], _kept(write, applied))
    return Answer(applied, entry, now, _STATUS[before] if before else None, locked is True)


def finishes(write: Write) -> bool:
    return isinstance(write, Move) and MOVES[write.verb][1] in FINISHED


def _kept(write: Write, applied: bool) -> Outcome | None:
    """The outcome an applied write leaves, if it brought one: its body is not sent back."""
    return write.outcome if applied and isinstance(write, Move) and finishes(write) else None


def to_entry(scope: str, key: str, row: Sequence[Any], outcome: Outcome | None = None) -> Entry:
    if outcome is None:
        code, headers, body, chunks = row[14:18]
        kept = code is not None or headers is not None or body is not None or chunks
        outcome = Outcome(code, headers, body, chunks) if kept else NOTHING
    return Entry(
        scope, key, row[0], _STATUS[row[1]], row[2], row[3], row[4], row[5], row[6], row[7], row[8], row[9], row[10],
        row[11], row[12], row[13], outcome, row[9] if row[18] is None else row[18],
    )  # fmt: skip
