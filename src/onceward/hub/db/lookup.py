"""Lookups: single indexed reads, which take no lock and no transaction.

On SQLite a lookup runs on the event loop itself: a read in WAL mode never waits for writers, and takes less time than a
switch to a thread. Its connections are outside SQLAlchemy's pool, whose checkout takes longer than a small query. On
PostgreSQL a thread answers all lookups that were asked meanwhile with one statement of each kind.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import sqlalchemy

from onceward.errors import StoreOverloaded
from onceward.hub.db.batch_thread import BatchThread, KeptConnection, QueuedItem
from onceward.hub.db.raw_sql import RawStatement, sqlite_connection

if TYPE_CHECKING:
    from onceward.hub.db.engine import Database

Rows: TypeAlias = Sequence[Sequence[Any]]

# Questions that one statement answers.
BATCH_MAX = 256


class Lookup:
    """A read with named parameters.

    Args:
        one: The statement for one question, with its parameters.
        many: The statement for PostgreSQL. It gets the questions as a JSON array of objects in `:asked`, and its first
            column is the place of the question in the array, counted from 1.
    """

    def __init__(self, one: RawStatement, many: sqlalchemy.Executable | str) -> None:
        self.one = one
        self.many = sqlalchemy.text(many) if isinstance(many, str) else many


class Lookups:
    """Lookups in one database, for tasks of an event loop."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._connection = KeptConnection(database.engine, _autocommitting)
        self._thread = BatchThread("onceward-lookups", self._run, BATCH_MAX, self._connection.close)

    async def find(self, lookup: Lookup, values: Mapping[str, object]) -> Rows:
        """Return the rows of a lookup. Raises `StoreUnavailable` if the database does not respond."""
        if self._database.is_sqlite:
            return self._database.rows(lookup.one, values)
        rows: Rows = await self._thread.submit((lookup, values))
        return rows

    def close(self) -> None:
        self._thread.close()

    def _run(self, items: Sequence[QueuedItem[Rows]]) -> None:
        by_lookup: dict[Lookup, list[QueuedItem[Rows]]] = {}
        for item in items:
            by_lookup.setdefault(item.work[0], []).append(item)
        for lookup, asked in by_lookup.items():
            values = {"asked": json.dumps([item.work[1] for item in asked])}
            answers: list[list[Sequence[Any]]] = [[] for _ in asked]
            for place, *row in self._execute(lookup, values):
                answers[place - 1].append(row)
            for item, rows in zip(asked, answers, strict=True):
                item.succeed(rows)

    def _execute(self, lookup: Lookup, values: Mapping[str, object]) -> Rows:
        was_open = self._connection.is_open
        try:
            with self._database.translating_errors():
                return self._connection.get().execute(lookup.many, values).all()
        except Exception as error:
            self._connection.close()
            if not was_open or isinstance(error, StoreOverloaded):
                raise
        # The server may have closed the idle connection. A read can be repeated.
        return self._execute(lookup, values)


def _autocommitting(connection: sqlalchemy.Connection) -> sqlalchemy.Connection:
    return connection.execution_options(isolation_level="AUTOCOMMIT")


# More than the number of concurrent readers.
IDLE_MAX = 48


class ReadConnections:
    """Stack of idle connections. Each is used by one thread at a time, for one statement."""

    def __init__(self, engine: sqlalchemy.Engine) -> None:
        self._engine = engine
        self._idle: deque[sqlite3.Connection] = deque()
        self._process = os.getpid()
        self._closed = False

    @contextlib.contextmanager
    def borrow(self) -> Iterator[sqlite3.Connection]:
        connection = self.take()
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        self.give_back(connection)

    def take(self) -> sqlite3.Connection:
        """Take a connection without a context manager, which would take as long as a small query."""
        if self._process != os.getpid():
            # After a fork: the parent's connections must be neither used nor closed here.
            _inherited.append(self._idle)
            self._idle, self._process = deque(), os.getpid()
        try:
            return self._idle.pop()
        except IndexError:
            return self._open()

    def give_back(self, connection: sqlite3.Connection) -> None:
        """Give back a connection after a successful query. Close it after any other one."""
        self._idle.append(connection)
        if self._closed or len(self._idle) > IDLE_MAX:
            self._close_one()

    def _open(self) -> sqlite3.Connection:
        lent = self._engine.raw_connection()
        connection = sqlite_connection(lent)
        lent.detach()
        return connection

    def close(self) -> None:
        self._closed = True
        while self._idle:
            self._close_one()

    def _close_one(self) -> None:
        try:
            self._idle.pop().close()
        except IndexError:  # another thread took it
            return


_inherited: list[deque[sqlite3.Connection]] = []
