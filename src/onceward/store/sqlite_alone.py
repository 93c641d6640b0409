"""One write by itself, which is nearly every write of a process with one caller: one statement with its guard in it.

A transaction of several statements costs SQLite little and Python a good deal. A new entry is inserted if nobody has the
key and no purge has raised the floor of the versions; a claim that we hold is moved if its last write is still the one
that we remember; both, if the lock of the file came soon enough. In every other case the answer is None, and the transaction
decides.
"""

from __future__ import annotations

import sqlite3

from onceward.core.claim import Answer, Begin, Entry, Move, Write, apply
from onceward.store import Clock
from onceward.store.sqlite_rows import INSERT_ALONE, MOVE_ALONE, SELECT_ONE, moved, to_entry, to_row

# A decision older than this (in microseconds), because the lock was long in coming, is made again: leases count from now.
STALE = 100_000


def write_alone(db: sqlite3.Connection, write: Write, held: Entry | None, floor: int, clock: Clock) -> Answer | None:
    """`held` is the entry as we remember it, `floor` what we know of the versions; both may be out of date."""
    if isinstance(write, Begin):
        return _begin(db, write, floor, clock)
    if isinstance(write, Move):
        return None if held is None else _move(db, write, held, clock)
    return None


def _begin(db: sqlite3.Connection, write: Begin, floor: int, clock: Clock) -> Answer | None:
    row = db.execute(SELECT_ONE, (write.scope, write.key)).fetchone()
    now = clock()
    if row is not None:
        entry = to_entry(row)
        return Answer(False, entry, now) if apply(entry, write, now, 0) is None else None
    after = apply(None, write, now, floor + 1)
    if after is None or db.execute(INSERT_ALONE, (*to_row(after), floor, now + STALE)).rowcount != 1:
        return None
    return Answer(True, after, now)


def _move(db: sqlite3.Connection, write: Move, held: Entry, clock: Clock) -> Answer | None:
    now = clock()
    after = apply(held, write, now, held.version)
    if after is None or db.execute(MOVE_ALONE, (*moved(after), held.write_id, now + STALE)).rowcount != 1:
        return None
    return Answer(True, after, now, held.status)
