"""Database connection of the hub, with two kinds of transaction: `read()` and `write()`.

The same code runs on SQLite and PostgreSQL. On both, a read transaction sees one snapshot of the data.
A write transaction commits when its block ends, and rolls back if the block raises. Requests write through `writer`,
which commits the work of many callers together; `write()` is for commands, jobs and migrations.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from onceward.errors import missing_extra

try:
    import sqlalchemy
    from sqlalchemy import event
except ModuleNotFoundError as error:
    raise missing_extra(error, __name__, "hub") from error

from onceward.errors import InvalidStoreUrl, StoreMisconfigured, StoreOverloaded, StoreUnavailable
from onceward.hub.db.lookup import Lookups, ReadConnections
from onceward.hub.db.postgres.engine import postgres_engine
from onceward.hub.db.raw_sql import RawStatement, sqlite_connection
from onceward.hub.db.wal_checkpoint import WalCheckpoint
from onceward.hub.db.writer import Writer
from onceward.hub.db.writer_queue import WriterQueue
from onceward.store.durable import sync_fully
from onceward.store.postgres import errors as postgres_errors
from onceward.store.sqlite import errors as sqlite_errors

Transaction: TypeAlias = sqlalchemy.Connection

# SQLite: more than the threads of the server's pool, so that neither they nor the event loop wait for a connection.
SQLITE_CONNECTIONS = 48
# PostgreSQL: a server allows about a hundred connections, shared by several hub processes. Threads wait for a free one.
POSTGRES_CONNECTIONS = 16
# Connections outside the pool: those of the writer, of lookups and of notifications.
KEPT_CONNECTIONS = 3
# Connections reserved for readers: writers may all wait for one lock, and readers must not wait behind them.
READERS_CONNECTIONS = 4
# How long a writer waits for the writers of other processes.
BUSY_SECONDS = 30.0
# How long a thread waits for a free connection.
POOL_SECONDS = 5.0
# SQLite's automatic checkpoint runs only at 64 MB, as a fallback if the thread of `WalCheckpoint` is delayed.
_CHECKPOINT_PAGES = 16_000

_READ = "onceward_read"
_DOWN = (
    sqlite3.OperationalError,
    sqlalchemy.exc.OperationalError,
    sqlalchemy.exc.InterfaceError,
)
_CHANGES = "onceward_changes"
_SCHEMES = "sqlite:///path or postgresql://user@host/name"


def open_database(url: str, *, pool_size: int | None = None, connections: int | None = None) -> Database:
    """Open the database of a URL, or raise `InvalidStoreUrl`. It connects on first use.

    `connections` is the largest number of connections to PostgreSQL, in the pool and outside. `pool_size` is the number
    in the pool, on both databases.
    """
    scheme = url.partition(":")[0]
    try:
        address = sqlalchemy.make_url(url)
    except (sqlalchemy.exc.ArgumentError, ValueError):
        raise InvalidStoreUrl(f"not a database URL; expected {_SCHEMES}") from None
    match scheme:
        case "sqlite":
            if not address.database or address.host:
                raise InvalidStoreUrl(
                    "a SQLite URL must name a file: sqlite:///relative/path or sqlite:////absolute/path"
                )
            if not Path(address.database).parent.is_dir():
                raise InvalidStoreUrl(f"the folder of {address.database!r} does not exist; create it first")
            # Absolute: the current folder may change before a connection is opened.
            address = address.set(database=str(Path(address.database).absolute()))
            return Database(_sqlite(address, pool_size or SQLITE_CONNECTIONS), writers=1)
        case "postgresql" | "postgres" | "postgresql+psycopg":
            pool_size = pool_size or (connections or POSTGRES_CONNECTIONS + KEPT_CONNECTIONS) - KEPT_CONNECTIONS
            engine = postgres_engine(address, pool_size, POOL_SECONDS)
            return Database(engine, writers=max(1, pool_size - READERS_CONNECTIONS))
        case _:
            raise InvalidStoreUrl(f"unknown database scheme {scheme!r}; expected {_SCHEMES}")


class Database:
    """Database shared by all threads of a process. At most `writers` threads write at a time; others wait with a timeout."""

    def __init__(self, engine: sqlalchemy.Engine, writers: int) -> None:
        self.engine = engine
        self.is_sqlite = engine.dialect.name == "sqlite"
        self._reading = engine.execution_options(**{_READ: True})
        if not self.is_sqlite:
            # One snapshot for all statements of a read, as on SQLite.
            self._reading = self._reading.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
        # Writers of this process queue here, because SQLite's busy timeout lets some writers starve.
        self._writers = threading.BoundedSemaphore(writers)
        self._queue = WriterQueue(str(engine.url.database)) if self.is_sqlite else None
        self._wal_checkpoint = WalCheckpoint(str(engine.url.database)) if self.is_sqlite else None
        self._read_connections = ReadConnections(engine)
        self.writer = Writer(self)
        self.lookups = Lookups(self)

    @contextlib.contextmanager
    def read(self) -> Iterator[Transaction]:
        """Open a read-only transaction on one snapshot of the data."""
        with self.translating_errors(), self._reading.connect() as connection, connection.begin():
            yield connection

    def rows(self, statement: RawStatement, values: Mapping[str, object]) -> Sequence[Sequence[Any]]:
        """Return the rows of one statement."""
        if not self.is_sqlite:
            with self.read() as tx:
                return statement.rows(tx, values)
        connection: sqlite3.Connection | None = None
        try:
            connection = self._read_connections.take()
            rows = statement.rows_on(connection, values)
        except BaseException:
            if connection is not None:
                connection.close()
            with self.translating_errors():
                raise
        self._read_connections.give_back(connection)
        return rows

    @contextlib.contextmanager
    def write(self) -> Iterator[Transaction]:
        """Open a write transaction. It commits when the block ends, and rolls back if the block raises."""
        with self.translating_errors(), self.writing():
            with self.engine.begin() as connection:
                yield connection
                changed = self.changed_rows(connection)
            self.committed(changed)

    @contextlib.contextmanager
    def translating_errors(self) -> Iterator[None]:
        """Translate errors of an unreachable or busy database to `StoreUnavailable`.

        A permanent refusal becomes `StoreMisconfigured`. Every other error is a bug and is raised unchanged.
        """
        try:
            yield
        except (sqlalchemy.exc.SQLAlchemyError, sqlite3.OperationalError) as error:
            ours = self._failure(error)
            if ours is None:
                raise
            raise ours from error

    def _failure(self, error: Exception) -> StoreUnavailable | None:
        reason = getattr(error, "orig", None) or error
        message, kind = postgres_errors.one_line(str(reason)), type(reason).__name__
        state = getattr(reason, "sqlstate", None)
        if self.is_sqlite:
            wrong = sqlite_errors.misconfiguration(reason, str(self.engine.url.database))
        else:
            wrong = postgres_errors.misconfiguration(state, message, "--database")
        if wrong is not None:
            return StoreMisconfigured(wrong)
        if isinstance(error, sqlalchemy.exc.TimeoutError):
            return StoreOverloaded(
                "all connections of this process to the database are in use; if that lasts, raise hub.database_connections"
            )
        if postgres_errors.is_overloaded(state, message):
            return StoreOverloaded(
                f"PostgreSQL has no free connection: {message}; allow more on the server or the pooler, or lower hub.workers"
                " or hub.database_connections"
            )
        if isinstance(error, _DOWN) or getattr(error, "connection_invalidated", False):
            return StoreUnavailable(f"the database is unavailable: {kind}: {message}")
        return None

    def translated(self, error: Exception) -> Exception:
        """Return what `translating_errors` would raise instead of this error."""
        return self._failure(error) or error

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Wait for the turn of this thread to write, among those of this process and of others."""
        if not self._writers.acquire(timeout=BUSY_SECONDS if self.is_sqlite else POOL_SECONDS):
            kind = StoreUnavailable if self.is_sqlite else StoreOverloaded
            raise kind("the database is unavailable: timed out waiting for other writers")
        try:
            with self._queue.turn() if self._queue is not None else contextlib.nullcontext():
                yield
        finally:
            self._writers.release()

    def changed_rows(self, connection: Transaction) -> int:
        """Return how many rows this connection has changed since the last call; 0 on PostgreSQL."""
        if not self.is_sqlite:
            return 0
        before: int = connection.info.get(_CHANGES, 0)
        now = sqlite_connection(connection.connection).total_changes
        connection.info[_CHANGES] = now
        return now - before

    def committed(self, changed_rows: int) -> None:
        """Count the rows of a commit for the next WAL checkpoint."""
        if self._wal_checkpoint is not None:
            self._wal_checkpoint.add(changed_rows)

    def close(self) -> None:
        self.writer.close()
        self.lookups.close()
        if self._wal_checkpoint is not None:
            self._wal_checkpoint.close()
        self._read_connections.close()
        self.engine.dispose()
        if self._queue is not None:
            self._queue.close()


def _sqlite(address: sqlalchemy.URL, pool_size: int) -> sqlalchemy.Engine:
    engine = sqlalchemy.create_engine(
        address,
        poolclass=sqlalchemy.QueuePool,
        pool_size=pool_size,
        max_overflow=0,
        pool_timeout=POOL_SECONDS,
        # No implicit transactions: the `begin` listener below starts them.
        connect_args={"timeout": BUSY_SECONDS, "check_same_thread": False, "isolation_level": None},
    )

    @event.listens_for(engine, "connect")
    def prepare(connection: sqlite3.Connection, _record: object) -> None:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        sync_fully(connection)
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT_PAGES}")

    @event.listens_for(engine, "begin")
    def begin(connection: sqlalchemy.Connection) -> None:
        reading = connection.get_execution_options().get(_READ, False)
        # Take the write lock at once: a transaction that reads first can fail when it starts to write.
        connection.exec_driver_sql("BEGIN" if reading else "BEGIN IMMEDIATE")

    return engine
