"""Encoding of writes as PostgreSQL records, and decoding of rows as entries and results, in the layout of `commit.sql`.

A batch is one array of records in PostgreSQL's own text format. It takes server and client a third of the time that
JSON would take.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, assert_never

from onceward.core.claim import (
    FINISHED,
    MOVES,
    Append,
    Begin,
    Entry,
    Mark,
    Move,
    Ref,
    Status,
    Write,
    WriteResult,
    apply,
)
from onceward.core.outcome import NOTHING, Outcome
from onceward.errors import StoreUnavailable

_STATUS = {status.value: status for status in Status}


def write_record(n: int, write: Write, at: int, known: str) -> str:
    """Encode a write as an `onceward_write_v7`.

    `at` is the position of its bytes in the data of the batch, and `known` the last write of its cached entry.
    """
    match write:
        case Begin():
            scope, key, write_id, fingerprint, holder, user_id, endpoint = _texts(
                write.scope, write.key, write.write_id, write.fingerprint, write.holder, write.user_id, write.endpoint
            )
            return (
                f'"({n},begin,\\"{scope}\\",\\"{key}\\",\\"{write_id}\\",{write.dead},{write.lease},{write.retain},'
                f'\\"{fingerprint}\\",\\"{holder}\\",{"t" if write.repeatable else "f"},\\"{user_id}\\",\\"{endpoint}\\",,,,,,,,'
                f'{write.key_basis or ""})"'
            )
        case Move():
            outcome = write.outcome
            scope, key, write_id, note, known = _texts(write.scope, write.key, write.write_id, write.note, known)
            headers = "" if outcome.headers is None else _quoted(*_texts(outcome.headers))
            parts = "" if outcome.body is None else f'\\"{{{at},{at + len(outcome.body)}}}\\"'
            return (
                f'"({n},{write.verb.value},\\"{scope}\\",\\"{key}\\",\\"{write_id}\\",{write.version},{write.lease},'
                f'{write.retain},,,,,,\\"{note}\\",{"" if outcome.code is None else outcome.code},'
                f"{headers},{outcome.chunks},{parts},{_quoted(known) if known else ''},"
                f'{write.refuse or ""},)"'
            )
        case Append():
            scope, key, write_id = _texts(write.scope, write.key, write.write_id)
            ends = [at]
            for chunk in write.chunks:
                ends.append(ends[-1] + len(chunk))
            parts = _quoted(f"{{{','.join(map(str, ends))}}}")
            return f'"({n},append,\\"{scope}\\",\\"{key}\\",\\"{write_id}\\",{write.version},,,,,,,,,,,{write.seq - 1},{parts},,,)"'
        case Mark():
            scope, key, write_id = _texts(write.scope, write.key, write.write_id)
            parts = _quoted(f"{{{at},{at + len(write.text.encode())}}}")
            return f'"({n},mark,\\"{scope}\\",\\"{key}\\",\\"{write_id}\\",{write.version},,,,,,,,,,,{write.seq},{parts},,,)"'
        case _:
            assert_never(write)


def read_record(n: int, ref: Ref) -> str:
    scope, key = _texts(*ref)
    return f'"({n},read,\\"{scope}\\",\\"{key}\\",,,,,,,,,,,,,,,,,)"'


def _texts(*texts: str) -> Sequence[str]:
    """Escape texts for a quoted field of a record inside a quoted array element. Most texts need no escapes."""
    joined = "".join(texts)
    if "\\" in joined or '"' in joined:
        return [text.replace("\\", "\\\\\\\\").replace('"', '\\\\\\"') for text in texts]
    return texts


def _quoted(text: str) -> str:
    return f'\\"{text}\\"'


def pieces(write: Write) -> tuple[bytes, ...]:
    """Return the bytes of a write, which are sent separately from the records."""
    match write:
        case Begin():
            return ()
        case Move():
            return () if write.outcome.body is None else (write.outcome.body,)
        case Append():
            return write.chunks
        case Mark():
            return (write.text.encode(),)
        case _:
            assert_never(write)


def count_results(rows: Sequence[Sequence[Any]]) -> int:
    """Return the number of writes that have a result in these rows."""
    if not rows or rows[0][0] >= 0:
        return len(rows)
    begun, ended = _brief(rows[0])
    return len(rows) - 1 + len(begun) + len(ended)


def to_results(
    writes: Sequence[Write], known: Sequence[Entry | None], rows: Sequence[Sequence[Any]]
) -> list[WriteResult | None]:
    """Decode the rows. `known` are the cached entries; results omit the parts of them that did not change."""
    results: list[WriteResult | None] = [None] * len(writes)
    for row in rows:
        n, now = row[0], row[4]
        if n >= 0:
            results[n] = _to_result(row, writes[n])
            continue
        begun, ended = _brief(row)
        for place, version in begun:
            results[place] = WriteResult(True, _applied(None, writes[place], now, int(version)), now)
        for place, before in ended:
            results[place] = WriteResult(True, _applied(known[place], writes[place], now, 0), now, _STATUS[before])
    return results


def _brief(row: Sequence[Any]) -> tuple[list[tuple[int, str]], list[tuple[int, str]]]:
    """Decode the first row: versions of new entries, and the earlier status of entries that are finished now."""
    return _pairs(row[18]), _pairs(row[2])


def _pairs(text: str | None) -> list[tuple[int, str]]:
    words = text.split(" ") if text else []
    return list(zip(map(int, words[::2]), words[1::2], strict=True))


def _applied(before: Entry | None, write: Write, now: int, version: int) -> Entry:
    entry = apply(before, write, now, version)
    if entry is None:
        raise StoreUnavailable("PostgreSQL returned an incomplete result")
    return entry


def _to_result(row: Sequence[Any], write: Write) -> WriteResult:
    _, applied, before, locked, now = row[:5]
    if row[5] is None:
        return WriteResult(False, None, now)
    entry = to_entry(write.scope, write.key, row[5:], _own_outcome(write, applied))
    return WriteResult(applied, entry, now, _STATUS[before] if before else None, locked is True)


def finishes(write: Write) -> bool:
    return isinstance(write, Move) and MOVES[write.verb][1] in FINISHED


def _own_outcome(write: Write, applied: bool) -> Outcome | None:
    """Return the outcome of an applied write that has one, because the server does not send its body back."""
    return write.outcome if applied and isinstance(write, Move) and finishes(write) else None


def to_entry(scope: str, key: str, row: Sequence[Any], outcome: Outcome | None = None) -> Entry:
    if outcome is None:
        code, headers, body, chunks = row[14:18]
        has_outcome = code is not None or headers is not None or body is not None or chunks
        outcome = Outcome(code, headers, body, chunks) if has_outcome else NOTHING
    return Entry(
        scope, key, row[0], _STATUS[row[1]], row[2], row[3], row[4], row[5], row[6], row[7], row[8], row[9], row[10],
        row[11], row[12], row[13], outcome, row[9] if row[18] is None else row[18],
        None if row[19] is None else bytes(row[19]).decode(), row[20] or 0, row[21], row[22] or 0,
    )  # fmt: skip
