"""The SQLite store: one file, one connection, one transaction for each batch (WAL, `synchronous=FULL`).

The file has one writer at a time, so the claim machine itself decides, in Python, between a read and a write of the
same transaction; no SQL repeats its rules.
"""

from __future__ import annotations

import os
import random
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from onceward.core.claim import Answer, Append, Begin, Entry, Ref, Status, Write, apply
from onceward.core.moment import to_text
from onceward.errors import InvalidStoreUrl, OncewardError, StoreClosed, StoreUnavailable
from onceward.store import BatchFailed, Clock, Page, Reading
from onceward.store.bind import SQLITE, Binding, session_for
from onceward.store.held import Held
from onceward.store.memory import cursor, wall_clock
from onceward.store.sqlite_alone import STALE, write_alone
from onceward.store.sqlite_rows import (
    DELETE,
    DELETE_CHUNKS,
    DOOMED_ABANDONED,
    DOOMED_FINISHED,
    INSERT_CHUNK,
    LAPSED,
    MOVE,
    SELECT_ONE,
    SELECT_PAGE,
    TAKE,
    Row,
    insert_many,
    move_many,
    moved,
    pages,
    select_many,
    taken,
    to_entry,
    to_row,
)
from onceward.store.sqlite_schema import ensure_schema

# How long a batch waits for another process's transaction, or a bound one, before it gives up.
BUSY_SECONDS = 5.0
# Several processes may create the file at once; switching to WAL does not wait by itself.
OPEN_SECONDS = 30.0

# Since SQLite 3.33; some systems have an older one.
UPDATES_FROM = sqlite3.sqlite_version_info >= (3, 33)

_T = TypeVar("_T")


class SqliteStore:
    """A ledger in a file. Several processes may open the same file; SQLite lets one write at a time."""

    def __init__(self, path: str | Path, clock: Clock | None = None) -> None:
        # Where it is now: the process may go elsewhere, and a fork makes it open its file again.
        self.path = Path(path).absolute()
        self._clock = clock or wall_clock
        self._db: sqlite3.Connection | None = None
        self._data_version = -1  # as of our last commit, with the version floor of that moment
        self._floor = 0
        self._held = Held()
        self._closed = False
        self._speaks = threading.Lock()
        _stores.add(self)

    def commit(self, writes: Sequence[Write]) -> list[Answer]:
        # As `with self._speaking()`, spelled out: this is the one call where a microsecond is worth two lines.
        try:
            with self._speaks:
                return self._commit(self._db or self._connect(), writes)
        except (sqlite3.Error, OverflowError) as error:
            raise self._ours(error) from error

    def _commit(self, db: sqlite3.Connection, writes: Sequence[Write]) -> list[Answer]:
        if len(writes) == 1:
            write = writes[0]
            ref = (write.scope, write.key)
            answer = write_alone(db, write, self._held.get(ref), self._floor, self._clock)
            if answer is not None:
                self._held.note_one(ref, answer)
                return [answer]
        refs = [Ref(write.scope, write.key) for write in writes]
        entries, remembered = self._look(db, refs)
        answers = self._decide(entries, writes)
        if remembered and not any(answer.applied for answer in answers):
            # What we remember may be out of date, so that no refusal is given from memory alone.
            entries = _lookup(db, refs)
            answers = self._decide(entries, writes)
        if not any(answer.applied for answer in answers):
            return answers
        return self._write(db, writes, refs, entries, answers)

    def _look(self, db: sqlite3.Connection, refs: list[Ref]) -> tuple[list[Entry | None], bool]:
        """The entries, as remembered where we hold them; and whether any was."""
        entries = [self._held.get(ref) for ref in refs]
        missing = [ref for ref, entry in zip(refs, entries, strict=True) if entry is None]
        if missing:
            found = iter(_lookup(db, missing))
            entries = [next(found) if entry is None else entry for entry in entries]
        return entries, len(missing) < len(refs)

    def _decide(self, entries: list[Entry | None], writes: Sequence[Write]) -> list[Answer]:
        """The answers, if nobody else has written since."""
        now, floor = self._clock(), self._floor
        answers = []
        for entry, write in zip(entries, writes, strict=True):
            after = apply(entry, write, now, max(floor, entry.version if entry else 0) + 1)
            if after is None:
                answers.append(Answer(False, entry, now))
            else:
                answers.append(Answer(True, after, now, None if entry is None else entry.found_as(now)))
        return answers

    def _write(
        self,
        db: sqlite3.Connection,
        writes: Sequence[Write],
        refs: list[Ref],
        entries: list[Entry | None],
        answers: list[Answer],
    ) -> list[Answer]:
        db.execute("BEGIN IMMEDIATE")
        try:
            data_version = _data_version(db)
            if data_version != self._data_version or self._clock() - answers[0].now > STALE:
                # Another connection wrote since our last commit, or had the lock for long: look and decide again.
                self._held.clear()
                self._data_version, self._floor = data_version, _version_floor(db)
                entries = _lookup(db, refs)
                answers = self._decide(entries, writes)
            begun: list[Row] = []
            changed: list[tuple[object, ...]] = []
            for entry, write, answer in zip(entries, writes, answers, strict=True):
                if answer.applied and answer.entry is not None:
                    _put(db, entry, write, answer.entry, begun, changed)
            for statement, values in pages(insert_many, begun):
                db.execute(statement, values)
            if UPDATES_FROM:
                for statement, values in pages(move_many, changed):
                    db.execute(statement, values)
            else:
                db.executemany(MOVE, changed)
            db.execute("COMMIT")
        except BaseException:
            self._held.clear()
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise
        self._held.note(refs, answers)
        return answers

    def read(self, refs: Sequence[Ref]) -> Reading:
        with self._speaking() as db:
            entries = _lookup(db, list(refs))
            return Reading(self._clock(), tuple(entries))

    def scan(self, scope: str | None, status: Status | None, after: str, limit: int) -> Page:
        last_scope, _, last_key = after.partition("\x00")
        sql, arguments = SELECT_PAGE, [last_scope, last_key]
        if scope is not None:
            sql, arguments = f"{sql} AND scope = ?", [*arguments, scope]
        if status is not None:
            # Spelled out for the unfinished ones, so that SQLite may use their small index.
            literal = "AND status IN ('in_progress', 'in_doubt') " if status in _OPEN else ""
            sql, arguments = f"{sql} {literal}AND status = ?", [*arguments, status.value]
        with self._speaking() as db:
            rows = db.execute(f"{sql} ORDER BY scope, key LIMIT ?", (*arguments, limit + 1)).fetchall()
        page = tuple(to_entry(row) for row in rows[:limit])
        return Page(page, cursor(page[-1].ref) if len(rows) > limit else "")

    def purge(self, limit: int) -> int:
        with self._speaking() as db:
            if not _doomed(db, self._clock(), 1):
                return 0
            db.execute("BEGIN IMMEDIATE")
            try:
                doomed = _doomed(db, self._clock(), limit)
                floor = max((row[2] for row in doomed), default=0)
                db.execute("UPDATE platform_idempotency_meta SET version_floor = max(version_floor, ?)", (floor,))
                self._data_version = -1  # what we remember holds no longer
                db.executemany(DELETE, [row[:2] for row in doomed])
                db.executemany(DELETE_CHUNKS, [row[:2] for row in doomed])
                db.execute("COMMIT")
            except BaseException:
                if db.in_transaction:
                    db.execute("ROLLBACK")
                raise
        return len(doomed)

    def lapsed(self, limit: int) -> Sequence[Entry]:
        with self._speaking() as db:
            return [to_entry(row) for row in db.execute(LAPSED, (to_text(self._clock()), limit))]

    def chunks(self, ref: Ref, version: int, after: int, limit: int) -> list[bytes]:
        sql = (
            "SELECT data FROM platform_idempotency_keys AS k JOIN platform_idempotency_chunks AS c USING (scope, key)"
            " WHERE k.scope = ? AND k.key = ? AND k.version = ? AND c.seq > ? ORDER BY c.seq LIMIT ?"
        )
        with self._speaking() as db:
            return [row[0] for row in db.execute(sql, (ref.scope, ref.key, version, after, limit))]

    def bind(self, connection: object) -> Binding:
        """A caller's transaction on this very file; it holds the file's write lock, so keep it short."""
        return Binding(session_for(connection, SQLITE), SQLITE, self._clock, self.path)

    def abandon(self) -> None:
        """Nothing is inherited: `before_fork` has closed the connection."""

    def close(self) -> None:
        self._closed = True
        with self._speaks:
            self._hang_up()

    def before_fork(self) -> None:
        """Close the connection and keep it closed until `after_fork`: SQLite remembers, for the whole process, which
        locks its connections hold. A child would take those of an inherited connection for its own and take no lock
        in the file; its parent, closing last as it believes, would then delete the log that the child writes to.
        """
        self._speaks.acquire()
        self._hang_up()

    def after_fork(self) -> None:
        self._speaks.release()

    def _hang_up(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None

    @contextmanager
    def _speaking(self) -> Iterator[sqlite3.Connection]:
        """The open connection; whatever goes wrong leaves as one of our own exceptions."""
        try:
            with self._speaks:
                yield self._db or self._connect()
        except (sqlite3.Error, OverflowError) as error:
            raise self._ours(error) from error

    def _ours(self, error: Exception) -> OncewardError:
        if isinstance(error, sqlite3.IntegrityError | sqlite3.DataError | OverflowError):
            return BatchFailed(f"SQLite refused the data: {error}")
        return StoreUnavailable(f"SQLite store {self.path}: {error}")

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
            raise InvalidStoreUrl(f"{self.path} is a folder; a SQLite ledger is a file")
        # The batcher's thread opens it, and a later one may close it: never two at once.
        db = sqlite3.connect(
            self.path, isolation_level=None, timeout=BUSY_SECONDS, check_same_thread=False, cached_statements=256
        )
        try:
            db.create_function("onceward_now", 0, self._clock)
            _prepare(db)
        except BaseException:
            db.close()
            raise
        return db


_OPEN = (Status.IN_PROGRESS, Status.IN_DOUBT)


def _prepare(db: sqlite3.Connection) -> None:
    """Look first; create the schema under the write lock only if it is missing."""
    try:
        _patiently(lambda: db.execute("PRAGMA journal_mode=WAL").fetchone())
    except sqlite3.DatabaseError as error:
        if "not a database" in str(error):
            raise InvalidStoreUrl("the file exists and is not an SQLite database") from error
        raise
    db.execute("PRAGMA synchronous=FULL")
    ensure_schema(db, lambda: _patiently(lambda: db.execute("BEGIN IMMEDIATE")))


def _patiently(step: Callable[[], _T]) -> _T:
    """Repeat a step that SQLite refuses at once, without its busy timeout, while another process opens the file."""
    deadline = time.monotonic() + OPEN_SECONDS
    while True:
        try:
            return step()
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(random.uniform(0.001, 0.02))  # noqa: S311  # spreads the contenders


def _data_version(db: sqlite3.Connection) -> int:
    """Changes when, and only when, another connection has written to the file."""
    version: int = db.execute("PRAGMA data_version").fetchone()[0]
    return version


def _version_floor(db: sqlite3.Connection) -> int:
    floor: int = db.execute("SELECT version_floor FROM platform_idempotency_meta").fetchone()[0]
    return floor


def _lookup(db: sqlite3.Connection, refs: list[Ref]) -> list[Entry | None]:
    if len(refs) == 1:
        row = db.execute(SELECT_ONE, refs[0]).fetchone()
        return [None if row is None else to_entry(row)]
    rows = [row for statement, values in pages(select_many, refs) for row in db.execute(statement, values)]
    found = {(row[0], row[1]): to_entry(row) for row in rows}
    return [found.get(ref) for ref in refs]


def _doomed(db: sqlite3.Connection, now: int, limit: int) -> list[tuple[str, str, int]]:
    """What may be purged: finished entries by their index, then abandoned ones among the few unfinished."""
    doomed: list[tuple[str, str, int]] = []
    for sql in (DOOMED_FINISHED, DOOMED_ABANDONED):
        doomed += db.execute(sql, (to_text(now), limit - len(doomed)))
    return doomed


def _put(
    db: sqlite3.Connection,
    before: Entry | None,
    write: Write,
    after: Entry,
    begun: list[Row],
    changed: list[tuple[object, ...]],
) -> None:
    """Add the entry to the rows to insert or to update; what is rare is written at once."""
    ref = (after.scope, after.key)
    if isinstance(write, Begin) and after.status is Status.IN_PROGRESS:
        if before is not None:
            db.execute(DELETE_CHUNKS, ref)
        if before is not None and not before.absent(after.claimed_at):
            # In its row: what earlier attempts recorded there stays.
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


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)
