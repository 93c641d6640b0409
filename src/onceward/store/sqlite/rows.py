"""Entries as rows of the SQLite tables, and the statements that read and write them."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence

from onceward.core.claim import Entry, Status
from onceward.core.outcome import NOTHING, Outcome
from onceward.core.timestamp import from_text, to_text

COLUMNS = (
    "scope, key, fingerprint, status, version, attempt, write_id, holder, repeatable, lease_until, expires_at, "
    "created_at, completed_at, user_id, endpoint, note, response_status, response_headers, response_body, response_chunks, "
    "claimed_at, recovery_point, recovery_seq, refuse_until, not_done_count"
)
SELECT = f"SELECT {COLUMNS} FROM platform_idempotency_keys"  # noqa: S608  # a constant
SELECT_ONE = f"{SELECT} WHERE scope = ? AND key = ?"
# CROSS JOIN makes SQLite iterate over the wanted keys and find each one by index, never the other way round.
_SELECT_MANY = (
    f"WITH w(s, k) AS (VALUES {{}}) SELECT {COLUMNS} FROM w"  # noqa: S608
    " CROSS JOIN platform_idempotency_keys ON scope = s AND key = k"
)
SELECT_PAGE = f"{SELECT} WHERE (scope, key) > (?, ?)"
# Without the columns that only `begin` writes, so that their indexes need no update.
MOVE = (
    "UPDATE platform_idempotency_keys SET status = ?, write_id = ?, lease_until = ?, expires_at = ?, completed_at = ?,"
    " note = ?, response_status = ?, response_headers = ?, response_body = ?, response_chunks = ?, recovery_point = ?,"
    " recovery_seq = ?, refuse_until = ?, not_done_count = ? WHERE scope = ? AND key = ?"
)
# Many rows in one statement, during which the interpreter's lock (GIL) is free. `OR FAIL` is enough, because a failure
# rolls back the whole transaction. Without it, SQLite keeps a journal for each such statement, which costs more than
# the single statement saves.
_INSERT_MANY = f"INSERT OR FAIL INTO platform_idempotency_keys ({COLUMNS}) VALUES "  # noqa: S608
_MOVED = (
    "status", "write_id", "lease_until", "expires_at", "completed_at", "note", "response_status", "response_headers",
    "response_body", "response_chunks", "recovery_point", "recovery_seq", "refuse_until", "not_done_count",
)  # fmt: skip
_MOVE_MANY = (
    "WITH w({}, scope, key) AS (VALUES {}) UPDATE OR FAIL platform_idempotency_keys AS e SET {} FROM w"
    " WHERE e.scope = w.scope AND e.key = w.key"
)
# A new claim in the row of a failed or lapsed one, without the columns that outlive an attempt.
TAKE = (
    "UPDATE platform_idempotency_keys SET status = ?, version = ?, attempt = ?, write_id = ?, holder = ?, repeatable = ?,"
    " lease_until = ?, expires_at = ?, completed_at = NULL, user_id = ?, endpoint = ?, note = ?, response_status = NULL,"
    " response_headers = NULL, response_body = NULL, response_chunks = 0, claimed_at = ? WHERE scope = ? AND key = ?"
)
# 32 rows of 25 columns have fewer than the 999 parameters that every SQLite accepts. The statement for each number of
# rows stays prepared.
ROWS_MAX = 32
# Statements with guards, for a write that needs no transaction around it. The last guard reads the clock once the file
# is locked: the decision that was made before may be too old by then.
INSERT_ALONE = (
    f"INSERT OR FAIL INTO platform_idempotency_keys ({COLUMNS})"  # noqa: S608
    f" SELECT {', '.join('?' * len(COLUMNS.split(', ')))} FROM platform_idempotency_meta"
    " WHERE version_floor = ? AND onceward_now() <= ? ON CONFLICT DO NOTHING"
)
MOVE_ALONE = f"{MOVE} AND write_id = ? AND onceward_now() <= ?"
PURGEABLE_FINISHED = (
    "SELECT scope, key, version, refuse_until FROM platform_idempotency_keys"
    " WHERE status IN ('completed', 'failed') AND expires_at <= ? ORDER BY expires_at LIMIT ?"
)
PURGEABLE_ABANDONED = (
    "SELECT scope, key, version, NULL FROM platform_idempotency_keys"
    " WHERE status = 'in_progress' AND status IN ('in_progress', 'in_doubt') AND expires_at <= ? LIMIT ?"
)
# Entries that never expire, but whose results are dropped. The index exists only if there are any.
DROPPABLE = (
    "SELECT scope, key, version, NULL FROM platform_idempotency_keys"
    " WHERE expires_at IS NULL AND refuse_until IS NOT NULL AND refuse_until <= ? LIMIT ?"
)
# The rest of an entry whose result purge drops: see `Entry.without_result`. All expressions see the values before.
DROP = (
    "UPDATE platform_idempotency_keys SET response_status = NULL, response_headers = NULL, response_body = NULL,"
    " response_chunks = 0, recovery_point = NULL, recovery_seq = NULL,"
    " refuse_until = CASE WHEN expires_at IS NOT NULL THEN refuse_until END,"
    " expires_at = CASE WHEN expires_at IS NOT NULL THEN refuse_until END WHERE scope = ? AND key = ?"
)
LAPSED = f"{SELECT} WHERE status = 'in_progress' AND repeatable = 0 AND lease_until <= ? ORDER BY lease_until LIMIT ?"
DELETE = "DELETE FROM platform_idempotency_keys WHERE scope = ? AND key = ?"
DELETE_CHUNKS = "DELETE FROM platform_idempotency_chunks WHERE scope = ? AND key = ?"
INSERT_CHUNK = "INSERT INTO platform_idempotency_chunks (scope, key, seq, data) VALUES (?, ?, ?, ?)"

EntryRow = tuple[  # one row of COLUMNS
    str, str, str, str, int, int, str, str, int, str, str | None, str, str | None, str, str, str,
    int | None, str | None, bytes | None, int, str | None, bytes | None, int | None, str | None, int | None,
]  # fmt: skip


@functools.cache
def select_many(rows: int) -> str:
    """Return a SELECT whose values are this many scopes and keys, one after the other."""
    return _SELECT_MANY.format(_marks(2, rows))


@functools.cache
def insert_many(rows: int) -> str:
    """Return an INSERT whose values are this many rows of COLUMNS, one after the other."""
    return _INSERT_MANY + _marks(len(COLUMNS.split(", ")), rows)


@functools.cache
def move_many(rows: int) -> str:
    """Return an UPDATE whose values are those of `moved` for this many entries, one after the other."""
    columns, assignments = ", ".join(_MOVED), ", ".join(f"{name} = w.{name}" for name in _MOVED)
    return _MOVE_MANY.format(columns, _marks(len(_MOVED) + 2, rows), assignments)


def pages(
    statement: Callable[[int], str], rows: Sequence[Sequence[object]]
) -> Iterator[tuple[str, tuple[object, ...]]]:
    """Split rows into pages of at most `ROWS_MAX`, each with its statement and its values."""
    for start in range(0, len(rows), ROWS_MAX):
        page = rows[start : start + ROWS_MAX]
        yield statement(len(page)), tuple(itertools.chain.from_iterable(page))


def _marks(columns: int, rows: int) -> str:
    return ", ".join([f"({', '.join('?' * columns)})"] * rows)


def to_row(entry: Entry) -> EntryRow:
    outcome = entry.outcome
    return (
        entry.scope, entry.key, entry.fingerprint, entry.status.value, entry.version, entry.attempt, entry.write_id,
        entry.holder, int(entry.repeatable), to_text(entry.lease_until), _maybe_text(entry.expires_at),
        to_text(entry.created_at), _maybe_text(entry.completed_at), entry.user_id, entry.endpoint, entry.note,
        outcome.code, outcome.headers, outcome.body, outcome.chunks, to_text(entry.claimed_at), *_lasting(entry),
    )  # fmt: skip


def taken(entry: Entry) -> tuple[object, ...]:
    """Return the values of `TAKE`. The fingerprint and the time of the first attempt do not change."""
    return (
        entry.status.value, entry.version, entry.attempt, entry.write_id, entry.holder, int(entry.repeatable),
        to_text(entry.lease_until), _maybe_text(entry.expires_at), entry.user_id, entry.endpoint, entry.note,
        to_text(entry.claimed_at), entry.scope, entry.key,
    )  # fmt: skip


def moved(entry: Entry) -> tuple[object, ...]:
    """Return the values of `MOVE`."""
    outcome = entry.outcome
    return (
        entry.status.value, entry.write_id, to_text(entry.lease_until), _maybe_text(entry.expires_at),
        _maybe_text(entry.completed_at), entry.note, outcome.code, outcome.headers, outcome.body, outcome.chunks,
        *_lasting(entry), entry.scope, entry.key,
    )  # fmt: skip


def _lasting(entry: Entry) -> tuple[bytes | None, int | None, str | None, int | None]:
    """Return the columns that outlive an attempt. Most entries have none of them."""
    return (
        None if entry.recovery is None else entry.recovery.encode(), entry.recovery_seq or None,
        _maybe_text(entry.refuse_until), entry.key_basis or None,
    )  # fmt: skip


def _maybe_text(microseconds: int | None) -> str | None:
    return None if microseconds is None else to_text(microseconds)


def to_entry(row: EntryRow) -> Entry:
    code, headers, body, chunks = row[16:20]
    has_outcome = code is not None or headers is not None or body is not None or chunks
    created_at = from_text(row[11])
    return Entry(
        row[0], row[1], row[2], Status(row[3]), row[4], row[5], row[6], row[7], bool(row[8]), from_text(row[9]),
        None if row[10] is None else from_text(row[10]), created_at,
        None if row[12] is None else from_text(row[12]), row[13], row[14], row[15],
        Outcome(code, headers, body, chunks) if has_outcome else NOTHING,
        created_at if row[20] is None or row[20] == row[11] else from_text(row[20]),
        None if row[21] is None else row[21].decode(), row[22] or 0,
        None if row[23] is None else from_text(row[23]), row[24] or 0,
    )  # fmt: skip
