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
    """A write as `onceward_write_v2`; `at` is where its bytes begin in the data of the batch, `known` as in `Held`."""
    begins = f'"({n},{_word(write)},{_text(write.scope)},{_text(write.key)},{_text(write.write_id)}'
    match write:
        case Begin():
            return (
                f"{begins},{write.dead},{write.lease},{write.retain},{_text(write.fingerprint)},{_text(write.holder)},"
                f'{"t" if write.repeatable else "f"},{_text(write.user_id)},{_text(write.endpoint)},,,,,,)"'
            )
        case Move():
            outcome = write.outcome
            code = "" if outcome.code is None else outcome.code
            headers = "" if outcome.headers is None else _text(outcome.headers)
            parts = "" if outcome.body is None else _numbers(at, at + len(outcome.body))
            return (
                f"{begins},{write.version},{write.lease},{write.retain},,,,,,{_text(write.note)},{code},{headers},"
                f'{outcome.chunks},{parts},{_text(known) if known else ""})"'
            )
        case Append():
            ends = [at]
            for chunk in write.chunks:
                ends.append(ends[-1] + len(chunk))
            return f'{begins},{write.version},,,,,,,,,,,{write.seq - 1},{_numbers(*ends)},)"'
        case _:
            assert_never(write)


def read_record(n: int, ref: Ref) -> str:
    return f'"({n},read,{_text(ref.scope)},{_text(ref.key)},,,,,,,,,,,,,,,)"'


def _word(write: Write) -> str:
    match write:
        case Begin():
            return "begin"
        case Move():
            return write.verb.value
        case Append():
            return "append"
        case _:
            assert_never(write)


def _text(text: str) -> str:
    """Quoted as a field of a record, and that as a part of an element of an array."""
    if "\\" in text or '"' in text:
        text = text.replace("\\", "\\\\\\\\").replace('"', '\\\\\\"')
    return f'\\"{text}\\"'


def _numbers(*numbers: int) -> str:
    return f'\\"{{{",".join(map(str, numbers))}}}\\"'


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


def to_answer(row: Sequence[Any], write: Write, held: Entry | None) -> Answer:
    """`held` is the entry as it is remembered here, which an answer without a fingerprint leaves out."""
    _, applied, before, locked, now = row[:5]
    found = _STATUS[before] if before else None
    if row[5] is not None:
        return Answer(
            applied, to_entry(write.scope, write.key, row[5:], _kept(write, applied)), now, found, locked is True
        )
    if not applied:
        return Answer(False, None, now)
    entry = apply(None if isinstance(write, Begin) else held, write, now, row[7])
    if entry is None:
        raise StoreUnavailable("PostgreSQL answered less than it was asked for")
    return Answer(True, entry, now, found)


def _kept(write: Write, applied: bool) -> Outcome | None:
    """The outcome an applied write leaves, if it brought one: its body is not sent back."""
    return write.outcome if applied and isinstance(write, Move) and MOVES[write.verb][1] in FINISHED else None


def to_entry(scope: str, key: str, row: Sequence[Any], outcome: Outcome | None = None) -> Entry:
    if outcome is None:
        code, headers, body, chunks = row[14:]
        kept = code is not None or headers is not None or body is not None or chunks
        outcome = Outcome(code, headers, body, chunks) if kept else NOTHING
    return Entry(
        scope, key, row[0], _STATUS[row[1]], row[2], row[3], row[4], row[5], row[6], row[7], row[8], row[9], row[10],
        row[11], row[12], row[13], outcome,
    )  # fmt: skip
