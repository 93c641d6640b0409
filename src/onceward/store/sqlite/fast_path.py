"""Fast path for a batch of one write: a single statement that includes its guard.

Nearly every write of a process with one caller is such a batch. A transaction of several statements is cheap for SQLite
but expensive for Python. A new entry is inserted if the key has no entry and no purge has raised the version floor. A
claim of this process is moved if its last write is still the cached one. Both also require that the lock of the file
was obtained soon enough. In every other case the result is None, and the caller uses a transaction.
"""

from __future__ import annotations

import sqlite3

from onceward.core.claim import Begin, Entry, Move, Write, WriteResult, apply
from onceward.store import Clock
from onceward.store.sqlite.rows import INSERT_ALONE, MOVE_ALONE, SELECT_ONE, moved, to_entry, to_row

# A decision that is older than this (in microseconds), because of a long wait for the lock, is made again: leases must
# count from the present.
STALE = 100_000


def write_alone(
    db: sqlite3.Connection, write: Write, cached: Entry | None, floor: int, clock: Clock
) -> WriteResult | None:
    """Commit one write in one statement, or return None. `cached` (the entry) and `floor` may be out of date."""
    if isinstance(write, Begin):
        return _begin(db, write, floor, clock)
    if isinstance(write, Move):
        return None if cached is None else _move(db, write, cached, clock)
    return None


def _begin(db: sqlite3.Connection, write: Begin, floor: int, clock: Clock) -> WriteResult | None:
    row = db.execute(SELECT_ONE, (write.scope, write.key)).fetchone()
    now = clock()
    if row is not None:
        entry = to_entry(row)
        return WriteResult(False, entry, now) if apply(entry, write, now, 0) is None else None
    after = apply(None, write, now, floor + 1)
    if after is None or db.execute(INSERT_ALONE, (*to_row(after), floor, now + STALE)).rowcount != 1:
        return None
    return WriteResult(True, after, now)


def _move(db: sqlite3.Connection, write: Move, cached: Entry, clock: Clock) -> WriteResult | None:
    now = clock()
    after = apply(cached, write, now, cached.version)
    if after is None or db.execute(MOVE_ALONE, (*moved(after), cached.write_id, now + STALE)).rowcount != 1:
        return None
    return WriteResult(True, after, now, cached.status)
