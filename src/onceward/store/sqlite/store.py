"""The SQLite store: one file, one connection, one transaction for each batch (WAL, `synchronous=FULL`).

The file has one writer at a time, so `core.claim.apply` itself decides, in Python, between a read and a write of the
same transaction. No SQL repeats its rules.
"""

from __future__ import annotations

import random
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from onceward.core.claim import Append, Begin, Entry, Ref, Status, Write, WriteResult, apply
from onceward.core.timestamp import to_text
from onceward.errors import InvalidStoreUrl, StoreClosed
from onceward.store import Clock, Page, Reading, needs_new_schema
from onceward.store.bind import BoundConnection
from onceward.store.caller_connection import SQLITE, caller_connection
from onceward.store.claim_cache import ClaimCache
from onceward.store.durable import sync_fully
from onceward.store.forks import at_fork
from onceward.store.memory import cursor, wall_clock
from onceward.store.sqlite.errors import failure_of
from onceward.store.sqlite.fast_path import STALE, write_alone
from onceward.store.sqlite.rows import (
    DELETE,
    DELETE_CHUNKS,
    DROP,
    DROPPABLE,
    INSERT_CHUNK,
    LAPSED,
    MOVE,
    PURGEABLE_ABANDONED,
    PURGEABLE_FINISHED,
    SELECT_ONE,
    SELECT_PAGE,
    TAKE,
    EntryRow,
    insert_many,
    move_many,
    moved,
    pages,
    select_many,
    taken,
    to_entry,
    to_row,
)
from onceward.store.sqlite.schema import REQUIRE_NEW_SCHEMA, ensure_schema, has_drop_index, require_new_schema

# How long a batch waits for a transaction of another process, or a bound one, before it gives up.
BUSY_SECONDS = 5.0
# Several processes may create the file at once. Switching to WAL does not use SQLite's busy timeout.
OPEN_SECONDS = 30.0

# UPDATE FROM exists since SQLite 3.33; some systems have an older version.
UPDATES_FROM = sqlite3.sqlite_version_info >= (3, 33)

_T = TypeVar("_T")


class SqliteStore:
    """A ledger in a file. Several processes may open the same file; SQLite lets one write at a time."""

    def __init__(self, path: str | Path, clock: Clock | None = None) -> None:
        # Absolute, because the process may change its directory, and the file is opened again after a fork.
        self.path = Path(path).absolute()
        self._clock = clock or wall_clock
        self._db: sqlite3.Connection | None = None
        self._data_version = -1  # of our last commit; `_floor` is the version floor at that time
        self._floor = 0
        self._cache = ClaimCache()
        self._closed = False
        self._schema_is_required = False
        self._lock = threading.Lock()
        _stores.add(self)

    def commit(self, writes: Sequence[Write]) -> list[WriteResult]:
        # `with self._locked_db()`, inlined: on this path a microsecond matters.
        try:
            with self._lock:
                return self._commit(self._db or self._connect(), writes)
        except (sqlite3.Error, OverflowError) as error:
            raise failure_of(error, self.path) from error

    def _commit(self, db: sqlite3.Connection, writes: Sequence[Write]) -> list[WriteResult]:
        if not self._schema_is_required and any(map(needs_new_schema, writes)):
            require_new_schema(db)
            self._schema_is_required = True
        if len(writes) == 1:
            write = writes[0]
            ref = (write.scope, write.key)
            result = write_alone(db, write, self._cache.get(ref), self._floor, self._clock)
            if result is not None:
                self._cache.update_one(ref, result)
                return [result]
        refs = [Ref(write.scope, write.key) for write in writes]
        entries, remembered = self._load(db, refs)
        results = self._decide(entries, writes)
        if remembered and not any(result.applied for result in results):
            # The cache may be out of date, so a refusal is never based on it alone.
            entries = _read_entries(db, refs)
            results = self._decide(entries, writes)
        if not any(result.applied for result in results):
            return results
        return self._write(db, writes, refs, entries, results)

    def _load(self, db: sqlite3.Connection, refs: list[Ref]) -> tuple[list[Entry | None], bool]:
        """Return the entries, from the cache where possible, and whether any came from the cache."""
        entries = [self._cache.get(ref) for ref in refs]
        missing = [ref for ref, entry in zip(refs, entries, strict=True) if entry is None]
        if missing:
            found = iter(_read_entries(db, missing))
            entries = [next(found) if entry is None else entry for entry in entries]
        return entries, len(missing) < len(refs)

    def _decide(self, entries: list[Entry | None], writes: Sequence[Write]) -> list[WriteResult]:
        """Return the results that hold if no other connection has written since the entries were read."""
        now, floor = self._clock(), self._floor
        results = []
        for entry, write in zip(entries, writes, strict=True):
            after = apply(entry, write, now, max(floor, entry.version if entry else 0) + 1)
            if after is None:
                results.append(WriteResult(False, entry, now))
            else:
                results.append(WriteResult(True, after, now, None if entry is None else entry.found_as(now)))
        return results

    def _write(
        self,
        db: sqlite3.Connection,
        writes: Sequence[Write],
        refs: list[Ref],
        entries: list[Entry | None],
        results: list[WriteResult],
    ) -> list[WriteResult]:
        db.execute("BEGIN IMMEDIATE")
        try:
            data_version = _data_version(db)
            if data_version != self._data_version or self._clock() - results[0].now > STALE:
                # Another connection wrote since our last commit, or held the lock for long: read and decide again.
                self._cache.clear()
                self._data_version, self._floor = data_version, _version_floor(db)
                entries = _read_entries(db, refs)
                results = self._decide(entries, writes)
            begun: list[EntryRow] = []
            changed: list[tuple[object, ...]] = []
            for entry, write, result in zip(entries, writes, results, strict=True):
                if result.applied and result.entry is not None:
                    _put(db, entry, write, result.entry, begun, changed)
            for statement, values in pages(insert_many, begun):
                db.execute(statement, values)
            if UPDATES_FROM:
                for statement, values in pages(move_many, changed):
                    db.execute(statement, values)
            else:
                db.executemany(MOVE, changed)
            db.execute("COMMIT")
        except BaseException:
            self._cache.clear()
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise
        self._cache.update(refs, results)
        return results

    def read(self, refs: Sequence[Ref]) -> Reading:
        with self._locked_db() as db:
            entries = _read_entries(db, list(refs))
            return Reading(self._clock(), tuple(entries))

    def scan(self, scope: str | None, status: Status | None, after: str, limit: int) -> Page:
        last_scope, _, last_key = after.partition("\x00")
        sql, arguments = SELECT_PAGE, [last_scope, last_key]
        if scope is not None:
            sql, arguments = f"{sql} AND scope = ?", [*arguments, scope]
        if status is not None:
            # The literal lets SQLite use the small index of unfinished entries.
            literal = "AND status IN ('in_progress', 'in_doubt') " if status in _UNFINISHED else ""
            sql, arguments = f"{sql} {literal}AND status = ?", [*arguments, status.value]
        with self._locked_db() as db:
            rows = db.execute(f"{sql} ORDER BY scope, key LIMIT ?", (*arguments, limit + 1)).fetchall()
        page = tuple(to_entry(row) for row in rows[:limit])
        return Page(page, cursor(page[-1].ref) if len(rows) > limit else "")

    def purge(self, limit: int) -> int:
        with self._locked_db() as db:
            if not _purgeable(db, self._clock(), 1):
                return 0
            db.execute("BEGIN IMMEDIATE")
            try:
                purgeable = _purgeable(db, self._clock(), limit)
                floor = max((row[2] for row in purgeable), default=0)
                db.execute("UPDATE platform_idempotency_meta SET version_floor = max(version_floor, ?)", (floor,))
                self._data_version = -1  # the remembered floor is out of date
                db.executemany(DROP, [row[:2] for row in purgeable if row[3]])
                db.executemany(DELETE, [row[:2] for row in purgeable if not row[3]])
                db.executemany(DELETE_CHUNKS, [row[:2] for row in purgeable])
                db.execute("COMMIT")
            except BaseException:
                if db.in_transaction:
                    db.execute("ROLLBACK")
                raise
        return len(purgeable)

    def lapsed(self, limit: int) -> Sequence[Entry]:
        with self._locked_db() as db:
            return [to_entry(row) for row in db.execute(LAPSED, (to_text(self._clock()), limit))]

    def chunks(self, ref: Ref, version: int, after: int, limit: int) -> list[bytes]:
        sql = (
            "SELECT data FROM platform_idempotency_keys AS k JOIN platform_idempotency_chunks AS c USING (scope, key)"
            " WHERE k.scope = ? AND k.key = ? AND k.version = ? AND c.seq > ? ORDER BY c.seq LIMIT ?"
        )
        with self._locked_db() as db:
            return [row[0] for row in db.execute(sql, (ref.scope, ref.key, version, after, limit))]

    def check(self) -> None:
        """Check that the file is writable (see `store/check.py`).

        Only a write shows that: SQLite grants even the write lock on a read-only file.
        """
        with self._locked_db() as db:
            db.execute("UPDATE platform_idempotency_meta SET version_floor = version_floor WHERE false")

    def bind(self, connection: object) -> BoundConnection:
        """Bind to a caller's transaction on the same file. It holds the file's write lock, so keep it short."""
        return BoundConnection(
            caller_connection(connection, SQLITE), SQLITE, self._clock, self.path, REQUIRE_NEW_SCHEMA
        )

    def abandon(self) -> None:
        """Do nothing: `before_fork` has closed the connection."""

    def close(self) -> None:
        self._closed = True
        with self._lock:
            self._disconnect()

    def before_fork(self) -> None:
        """Close the connection and keep it closed until `after_fork`.

        SQLite keeps a list of all locks that the connections of a process hold. A child that inherits a connection
        would believe that it has those locks and would not lock the file. The parent would then consider itself the
        last user when it closes, and delete the log that the child writes to.
        """
        self._lock.acquire()
        self._disconnect()

    def after_fork(self) -> None:
        self._lock.release()

    def _disconnect(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None

    @contextmanager
    def _locked_db(self) -> Iterator[sqlite3.Connection]:
        """Yield the open connection, and translate errors into exceptions of the store contract."""
        try:
            with self._lock:
                yield self._db or self._connect()
        except (sqlite3.Error, OverflowError) as error:
            raise failure_of(error, self.path) from error

    def _connect(self) -> sqlite3.Connection:
        self._db = self._open()
        self._data_version = -1
        return self._db

    def _open(self) -> sqlite3.Connection:
        if self._closed:
            raise StoreClosed("the SQLite store is closed")
        if not self.path.parent.is_dir():
            raise InvalidStoreUrl(f"the folder of {self.path} does not exist; create it first")
        if self.path.is_dir():
            raise InvalidStoreUrl(f"{self.path} is a folder; an SQLite ledger must be a file")
        # One thread opens the connection, and another may use or close it later, but never two at once.
        db = sqlite3.connect(
            self.path, isolation_level=None, timeout=BUSY_SECONDS, check_same_thread=False, cached_statements=256
        )
        try:
            db.create_function("onceward_now", 0, self._clock)
            _prepare(db, self.path)
        except BaseException:
            db.close()
            raise
        return db


_UNFINISHED = (Status.IN_PROGRESS, Status.IN_DOUBT)


def _prepare(db: sqlite3.Connection, path: Path) -> None:
    """Set up a new connection. The schema is created, under the write lock, only if it is missing."""
    try:
        _retry_while_locked(lambda: db.execute("PRAGMA journal_mode=WAL").fetchone())
    except sqlite3.DatabaseError as error:
        if "not a database" in str(error):
            raise InvalidStoreUrl(
                f"{path} is not an SQLite database, or it is damaged; name another file, or restore a backup"
            ) from error
        raise
    db.execute("PRAGMA synchronous=FULL")
    sync_fully(db)
    ensure_schema(db, lambda: _retry_while_locked(lambda: db.execute("BEGIN IMMEDIATE")))


def _retry_while_locked(step: Callable[[], _T]) -> _T:
    """Repeat a step that SQLite refuses without its busy timeout while another process opens the file."""
    deadline = time.monotonic() + OPEN_SECONDS
    while True:
        try:
            return step()
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(random.uniform(0.001, 0.02))  # noqa: S311  # spreads the contenders


def _data_version(db: sqlite3.Connection) -> int:
    """Return a number that changes exactly when another connection has written to the file."""
    version: int = db.execute("PRAGMA data_version").fetchone()[0]
    return version


def _version_floor(db: sqlite3.Connection) -> int:
    floor: int = db.execute("SELECT version_floor FROM platform_idempotency_meta").fetchone()[0]
    return floor


def _read_entries(db: sqlite3.Connection, refs: list[Ref]) -> list[Entry | None]:
    if len(refs) == 1:
        row = db.execute(SELECT_ONE, refs[0]).fetchone()
        return [None if row is None else to_entry(row)]
    rows = [row for statement, values in pages(select_many, refs) for row in db.execute(statement, values)]
    found = {(row[0], row[1]): to_entry(row) for row in rows}
    return [found.get(ref) for ref in refs]


def _purgeable(db: sqlite3.Connection, now: int, limit: int) -> list[tuple[str, str, int, bool]]:
    """Return entries to purge, with their versions and whether only their results are dropped.

    Finished ones are found by their index, then abandoned ones among the few unfinished, then those that never expire.
    """
    time = to_text(now)
    purgeable: list[tuple[str, str, int, bool]] = []
    never_expire = (DROPPABLE,) if has_drop_index(db) else ()
    for sql in (PURGEABLE_FINISHED, PURGEABLE_ABANDONED, *never_expire):
        rows = db.execute(sql, (time, limit - len(purgeable)))
        purgeable += [
            (scope, key, version, sql is DROPPABLE or (until is not None and until > time))
            for scope, key, version, until in rows
        ]
    return purgeable


def _put(
    db: sqlite3.Connection,
    before: Entry | None,
    write: Write,
    after: Entry,
    begun: list[EntryRow],
    changed: list[tuple[object, ...]],
) -> None:
    """Add the entry to the rows to insert or to update. Rare changes are written at once."""
    ref = (after.scope, after.key)
    if isinstance(write, Begin) and after.status is Status.IN_PROGRESS:
        if before is not None:
            db.execute(DELETE_CHUNKS, ref)
        if before is not None and not before.absent(after.claimed_at):
            # Reuse the row, so that columns which outlive an attempt stay.
            db.execute(TAKE, taken(after))
            return
        if before is not None:
            db.execute(DELETE, ref)
        begun.append(to_row(after))
        return
    if isinstance(write, Append):
        db.executemany(INSERT_CHUNK, [(*ref, seq, data) for seq, data in enumerate(write.chunks, write.seq)])
    changed.append(moved(after))


_stores: weakref.WeakSet[SqliteStore] = weakref.WeakSet()
_forking: list[SqliteStore] = []


def _before_fork() -> None:
    for store in list(_stores):
        store.before_fork()
        _forking.append(store)


def _after_fork() -> None:
    while _forking:
        _forking.pop().after_fork()


at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)
