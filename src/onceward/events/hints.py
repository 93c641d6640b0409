"""When to look at the log again: hints that something was appended, from this process or another one.

A hint is never data and may be lost: whoever waits here looks at the log at least every so often without one.
"""

from __future__ import annotations

import contextlib
import logging
import selectors
import socket
import time
from typing import Any, Protocol

import sqlalchemy.exc

from onceward.db.engine import Database
from onceward.events.log import CHANNEL

# Another process's commit on the same SQLite file is seen after this time. One look costs about 10 microseconds.
_SQLITE_POLL_SECONDS = 0.02
# How long a source of hints that failed is left alone.
_REOPEN_SECONDS = 1.0

_log = logging.getLogger(__name__)


class Source(Protocol):
    """What the database itself says about commits of others."""

    def wait(self, bell: socket.socket, seconds: float) -> None:
        """Return when there may be something new, when the bell is rung, or after that time."""
        ...

    def close(self) -> None: ...


class DataVersion:
    """SQLite: a number that changes on this connection when another connection has committed."""

    def __init__(self, database: Database) -> None:
        self._connection: Any = _own_connection(database)
        self._version = self._look()

    def _look(self) -> int:
        return int(self._connection.execute("PRAGMA data_version").fetchone()[0])

    def wait(self, bell: socket.socket, seconds: float) -> None:
        until = time.monotonic() + seconds
        while True:
            left = until - time.monotonic()
            if left <= 0 or _readable(min(left, _SQLITE_POLL_SECONDS), bell):
                return
            if (version := self._look()) != self._version:
                self._version = version
                return

    def close(self) -> None:
        self._connection.close()


class Listening:
    """PostgreSQL: LISTEN, on a connection of its own."""

    def __init__(self, database: Database) -> None:
        self._connection: Any = _own_connection(database)
        try:
            self._connection.autocommit = True
            self._connection.execute(f"LISTEN {CHANNEL}")
        except BaseException:
            self._connection.close()
            raise

    def wait(self, bell: socket.socket, seconds: float) -> None:
        if self._connection in _readable(seconds, bell, self._connection):
            for _ in self._connection.notifies(timeout=0):
                pass

    def close(self) -> None:
        self._connection.close()


class Nothing:
    """No hints from the database: the bell and the clock alone."""

    def wait(self, bell: socket.socket, seconds: float) -> None:
        _readable(seconds, bell)

    def close(self) -> None:
        pass


class Hints:
    """`ring` may be called by any thread at any time; the rest belongs to one thread."""

    def __init__(self, database: Database, *, ask_database: bool = True) -> None:
        self._database = database
        self._ask_database = ask_database
        self._driver_errors = (database.engine.dialect.loaded_dbapi.Error, sqlalchemy.exc.SQLAlchemyError, OSError)
        self._bell, self._button = socket.socketpair()
        self._bell.setblocking(False)
        self._button.setblocking(False)
        self._rung = False
        self._source: Source | None = None
        self._reopen_at = 0.0
        self._said = False

    def ring(self) -> None:
        """Something was appended, or there is another reason to look."""
        if self._rung:
            return
        self._rung = True
        # Full: it is rung already. Closed: nobody looks any more.
        with contextlib.suppress(OSError):
            self._button.send(b"\0")

    def wait(self, seconds: float, *, eagerly: bool) -> None:
        """Return when it is time to look: a hint has come or that time has passed. Not eagerly: nobody is waiting for
        events, and the database is not asked for hints.
        """
        if eagerly and self._source is None and time.monotonic() >= self._reopen_at:
            # What was appended before is not hinted at: the caller looks first.
            self._open()
            return
        source = self._source if eagerly and self._source is not None else Nothing()
        try:
            source.wait(self._bell, seconds)
        except self._driver_errors as error:
            self._lose(error)
        with contextlib.suppress(BlockingIOError):
            while self._bell.recv(4096):
                pass
        # Cleared before the caller looks: what is appended after its look rings again.
        self._rung = False

    def _open(self) -> None:
        try:
            if not self._ask_database:
                self._source = Nothing()
            elif self._database.is_sqlite:
                self._source = DataVersion(self._database)
            else:
                self._source = Listening(self._database)
            self._said = False
        except self._driver_errors as error:
            self._lose(error)

    def _lose(self, error: Exception) -> None:
        if not self._said:
            self._said = True
            _log.warning("the database gives no hints about new events, they come later: %s", error)
        self._reopen_at = time.monotonic() + _REOPEN_SECONDS
        if self._source is not None:
            with contextlib.suppress(*self._driver_errors):
                self._source.close()
            self._source = None

    def close(self) -> None:
        if self._source is not None:
            with contextlib.suppress(*self._driver_errors):
                self._source.close()
        self._bell.close()
        self._button.close()


def _readable(seconds: float, *ones: Any) -> list[Any]:
    """Those with something to read, as soon as there is one. Not `select`: it knows only the first 1,024 files of a
    process, and every client is one.
    """
    with selectors.DefaultSelector() as selector:
        for one in ones:
            selector.register(one, selectors.EVENT_READ)
        return [key.fileobj for key, _ in selector.select(seconds)]


def _own_connection(database: Database) -> Any:
    """A connection that the pool does not count and does not take back."""
    pooled = database.engine.raw_connection()
    own = pooled.driver_connection
    # Afterwards it does not say any more which connection it had.
    pooled.detach()
    return own
