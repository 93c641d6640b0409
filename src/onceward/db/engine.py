"""A database, and the two ways to open a transaction on it: `read()` and `write()`.

The same code runs on SQLite and PostgreSQL. A read sees one moment of the data from its beginning to its end, on both.
A write commits when its block ends and leaves nothing behind when the block raises.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from onceward.errors import missing_extra

try:
    import sqlalchemy
    from sqlalchemy import event
except ModuleNotFoundError as error:
    raise missing_extra(error, __name__, "hub") from error

from onceward.db.copying import Copying
from onceward.db.plain import Plain, own
from onceward.db.readers import Readers
from onceward.db.together import Together
from onceward.errors import InvalidStoreUrl, StoreMisconfigured, StoreUnavailable
from onceward.store import postgres_errors, sqlite_errors
from onceward.store.durable import sync_fully

Transaction: TypeAlias = sqlalchemy.Connection
T = TypeVar("T")

# SQLite: more than the server's thread pool has threads, so that neither they nor its event loop wait for a connection.
SQLITE_CONNECTIONS = 48
# PostgreSQL: a server allows some hundred in all, and several hub processes share it. Threads wait their turn.
POSTGRES_CONNECTIONS = 16
# So many of them are never taken by writers, who may all be waiting for one lock: who only reads does not wait for it.
READERS_CONNECTIONS = 4
# How long a writer waits for a writer of another process before it gives up.
BUSY_SECONDS = 30.0
# How long a thread waits for a connection when every one is in use.
POOL_SECONDS = 10.0
# SQLite copies its log back into the file by itself only at 64 MB: something holds up the thread that does it (`Copying`).
_CHECKPOINT_PAGES = 16_000

# PostgreSQL: whoever waits longer for a lock waits for somebody who is stuck, and his client had better come again.
LOCK_SECONDS = 10
# Our transactions are never idle. One that is belongs to a process that stands still, and everybody who appends to the
# log may be waiting for it.
IDLE_SECONDS = 20

_READ = "onceward_read"
_DOWN = (
    sqlite3.OperationalError,
    sqlalchemy.exc.OperationalError,
    sqlalchemy.exc.InterfaceError,
    sqlalchemy.exc.TimeoutError,
)
_CHANGES = "onceward_changes"
_SCHEMES = "sqlite:///path or postgresql://user@host/name"


def open_database(url: str, *, pool_size: int | None = None) -> Database:
    """The database of a URL; `InvalidStoreUrl` when there is none. It connects on first use."""
    scheme = url.partition(":")[0]
    try:
        address = sqlalchemy.make_url(url)
    except (sqlalchemy.exc.ArgumentError, ValueError):
        raise InvalidStoreUrl(f"a database URL is {_SCHEMES}") from None
    match scheme:
        case "sqlite":
            if not address.database or address.host:
                raise InvalidStoreUrl(
                    "a SQLite database is a file: sqlite:///relative/path or sqlite:////absolute/path"
                )
            if not Path(address.database).parent.is_dir():
                raise InvalidStoreUrl(f"there is no folder for {address.database!r}; make it first")
            # Where it is now: a connection that is opened later must not look for it elsewhere.
            address = address.set(database=str(Path(address.database).absolute()))
            return Database(_sqlite(address, pool_size or SQLITE_CONNECTIONS), writers=1)
        case "postgresql" | "postgres" | "postgresql+psycopg":
            pool_size = pool_size or POSTGRES_CONNECTIONS
            return Database(_postgres(address, pool_size), writers=max(1, pool_size - READERS_CONNECTIONS))
        case _:
            raise InvalidStoreUrl(f"no database of the kind {scheme!r}; a database URL is {_SCHEMES}")


class Database:
    """Shared by all threads of a process. `writers` may write at the same time; the others wait, but not for ever."""

    def __init__(self, engine: sqlalchemy.Engine, writers: int) -> None:
        self.engine = engine
        self.is_sqlite = engine.dialect.name == "sqlite"
        self._reading = engine.execution_options(**{_READ: True})
        if not self.is_sqlite:
            # One moment of the data for all statements of a read, as SQLite has it.
            self._reading = self._reading.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
        # SQLite's own waiting starves some writers; writers of one process queue here instead.
        self._writers = threading.BoundedSemaphore(writers)
        self._copying = Copying(str(engine.url.database)) if self.is_sqlite else None
        self._readers = Readers(engine)
        self._together: dict[Callable[[], AbstractContextManager[None]], Together] = {}

    @contextlib.contextmanager
    def read(self) -> Iterator[Transaction]:
        """Look at one moment of the data; nothing can be written."""
        with self.speaking(), self._reading.connect() as connection, connection.begin():
            yield connection

    def rows(self, statement: Plain, values: Mapping[str, object]) -> Sequence[Sequence[Any]]:
        """What one statement finds."""
        if not self.is_sqlite:
            with self.read() as tx:
                return statement.rows(tx, values)
        with self.speaking(), self._readers.lent() as connection:
            return statement.rows_on(connection, values)

    @contextlib.contextmanager
    def write(self) -> Iterator[Transaction]:
        """Change the data: all of it when the block ends, nothing when it raises."""
        with self.speaking(), self._turn():
            with self.engine.begin() as connection:
                yield connection
                changed = 0 if self._copying is None else _changed(connection)
            if self._copying is not None:
                self._copying.add(changed)

    def together(
        self,
        within: Callable[[], AbstractContextManager[None]],
        first: Callable[[], object],
        work: Callable[[Transaction], T],
    ) -> T:
        """Inside `within()`, do what comes first, and the work in a write transaction. On SQLite, threads that wait for
        both share one of each; PostgreSQL has many writers, and its commits share the disk by themselves.
        """
        if not self.is_sqlite:
            with within():
                first()
                with self.write() as tx:
                    return work(tx)
        company = self._together.get(within)
        if company is None:
            company = self._together.setdefault(within, Together(self.write, self.speaking, within))
        return company.do(first, work)

    @contextlib.contextmanager
    def speaking(self) -> Iterator[None]:
        """A database that cannot be reached or waited for is `StoreUnavailable`, and one that refuses us for good is
        `StoreMisconfigured`; every other error is a bug and stays.
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
        if self.is_sqlite:
            wrong = sqlite_errors.misconfiguration(reason, str(self.engine.url.database))
        else:
            state = getattr(reason, "sqlstate", None)
            wrong = postgres_errors.misconfiguration(state, message, "--database")
        if wrong is not None:
            return StoreMisconfigured(wrong)
        if isinstance(error, _DOWN) or getattr(error, "connection_invalidated", False):
            return StoreUnavailable(f"the database does not answer: {kind}: {message}")
        return None

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        if not self._writers.acquire(timeout=BUSY_SECONDS if self.is_sqlite else POOL_SECONDS):
            raise StoreUnavailable("the database does not answer: others have been writing for too long")
        try:
            yield
        finally:
            self._writers.release()

    def close(self) -> None:
        if self._copying is not None:
            self._copying.close()
        self._readers.close()
        self.engine.dispose()


def _changed(connection: sqlalchemy.Connection) -> int:
    """How many rows this SQLite connection has changed since it was last asked."""
    before: int = connection.info.get(_CHANGES, 0)
    now = own(connection.connection).total_changes
    connection.info[_CHANGES] = now
    return now - before


def _sqlite(address: sqlalchemy.URL, pool_size: int) -> sqlalchemy.Engine:
    engine = sqlalchemy.create_engine(
        address,
        poolclass=sqlalchemy.QueuePool,
        pool_size=pool_size,
        max_overflow=0,
        pool_timeout=POOL_SECONDS,
        # Transactions begin where this module says so, not where the driver guesses.
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
        # The write lock is taken at once: a transaction that reads first and writes later can be refused half-way.
        connection.exec_driver_sql("BEGIN" if reading else "BEGIN IMMEDIATE")

    return engine


# What a role or database may have set otherwise. By a statement, because poolers refuse these in the connection string.
_SESSION = f"""
SELECT set_config('lock_timeout', '{LOCK_SECONDS}s', false),
       set_config('idle_in_transaction_session_timeout', '{IDLE_SECONDS}s', false),
       set_config('synchronous_commit', CASE current_setting('synchronous_commit')
                                            WHEN 'remote_apply' THEN 'remote_apply' ELSE 'on' END, false)
"""
_CONNECT = {
    "application_name": "onceward",
    "connect_timeout": 5,
    # A server that vanished without a word is noticed.
    "keepalives": 1,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
}


def _postgres(address: sqlalchemy.URL, pool_size: int) -> sqlalchemy.Engine:
    try:
        engine = sqlalchemy.create_engine(
            address.set(drivername="postgresql+psycopg"),
            pool_size=pool_size,
            max_overflow=0,
            pool_timeout=POOL_SECONDS,
            connect_args=_CONNECT,
            # A connection that was dropped while it was idle (a restart, a failover, a proxy) is replaced before it is used.
            pool_pre_ping=True,
            # A writer that was refused by an index looks for the row that did it, which is younger than itself.
            isolation_level="READ COMMITTED",
        )
    except ModuleNotFoundError:
        raise InvalidStoreUrl("PostgreSQL needs its driver: pip install 'onceward[postgres]'") from None

    @event.listens_for(engine, "connect")
    def prepare(connection: Any, _record: object) -> None:
        connection.execute(_SESSION)
        connection.commit()

    return engine
