"""SQLite connections for single queries, outside SQLAlchemy's pool, whose checkout takes longer than a small query."""

from __future__ import annotations

import os
import sqlite3
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

import sqlalchemy

from onceward.hub.db.raw_sql import sqlite_connection

# More than the number of concurrent readers.
IDLE_MAX = 48


class ReadConnections:
    """Stack of idle connections. Each is used by one thread at a time, for one statement."""

    def __init__(self, engine: sqlalchemy.Engine) -> None:
        self._engine = engine
        self._idle: deque[sqlite3.Connection] = deque()
        self._process = os.getpid()
        self._closed = False

    @contextmanager
    def borrow(self) -> Iterator[sqlite3.Connection]:
        if self._process != os.getpid():
            # After a fork: the parent's connections must be neither used nor closed here.
            _inherited.append(self._idle)
            self._idle, self._process = deque(), os.getpid()
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = self._open()
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
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
