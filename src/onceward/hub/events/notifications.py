"""Notifications that the log may have grown, by a commit of this process or of another one.

A notification carries no data and may be lost. The waiting thread also reads the log periodically without one.
"""

from __future__ import annotations

import contextlib
import logging
import selectors
import socket
import time
from typing import Any, Protocol

import sqlalchemy.exc

from onceward.core.log_event import log_event
from onceward.hub.db.engine import Database
from onceward.hub.events.log import CHANNEL

# How soon a commit of another process on the same SQLite file is noticed. One check costs about 10 microseconds.
_SQLITE_POLL_SECONDS = 0.02
# The same behind a pooler of PostgreSQL, where one check is a transaction of its own.
_POOLED_POLL_SECONDS = 0.2
# The pause before a failed source of notifications is opened again.
_REOPEN_SECONDS = 1.0

_log = logging.getLogger("onceward.events.hints")


class NotificationSource(Protocol):
    """Source of notifications from the database about commits of other connections."""

    def wait(self, wakeup: socket.socket, seconds: float) -> None:
        """Return when the log may have grown, when `wakeup` is readable, or after that time."""
        ...

    def close(self) -> None: ...


class SqliteDataVersion:
    """SQLite: `PRAGMA data_version`, a number that changes when another connection has committed."""

    def __init__(self, database: Database) -> None:
        self._connection: Any = _own_connection(database)
        self._version = self._read_version()

    def _read_version(self) -> int:
        return int(self._connection.execute("PRAGMA data_version").fetchone()[0])

    def wait(self, wakeup: socket.socket, seconds: float) -> None:
        until = time.monotonic() + seconds
        while True:
            left = until - time.monotonic()
            if left <= 0 or _readable(min(left, _SQLITE_POLL_SECONDS), wakeup):
                return
            if (version := self._read_version()) != self._version:
                self._version = version
                return

    def close(self) -> None:
        self._connection.close()


class PostgresListener:
    """PostgreSQL: LISTEN on a dedicated connection, which autocommits."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._connection.execute(f"LISTEN {CHANNEL}")

    def wait(self, wakeup: socket.socket, seconds: float) -> None:
        if self._connection in _readable(seconds, wakeup, self._connection):
            for _ in self._connection.notifies(timeout=0):
                pass

    def close(self) -> None:
        self._connection.close()


class PostgresPolling:
    """PostgreSQL behind a pooler, where nobody can listen: the largest event id, read on an autocommitting connection."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._last = self._read_last()

    def _read_last(self) -> int:
        return int(self._connection.execute("SELECT coalesce(max(event_id), 0) FROM events").fetchone()[0])

    def wait(self, wakeup: socket.socket, seconds: float) -> None:
        until = time.monotonic() + seconds
        while True:
            left = until - time.monotonic()
            if left <= 0 or _readable(min(left, _POOLED_POLL_SECONDS), wakeup):
                return
            if (last := self._read_last()) != self._last:
                self._last = last
                return

    def close(self) -> None:
        self._connection.close()


class NoSource:
    """No notifications from the database: only the wakeup and the timeout."""

    def wait(self, wakeup: socket.socket, seconds: float) -> None:
        _readable(seconds, wakeup)

    def close(self) -> None:
        pass


class Notifications:
    """Notifications for one waiting thread. Any thread may call `notify`; the other methods belong to that thread."""

    def __init__(self, database: Database, *, ask_database: bool = True) -> None:
        self._database = database
        self._ask_database = ask_database
        self._driver_errors = (database.engine.dialect.loaded_dbapi.Error, sqlalchemy.exc.SQLAlchemyError, OSError)
        self._wakeup, self._wakeup_sender = socket.socketpair()
        self._wakeup.setblocking(False)
        self._wakeup_sender.setblocking(False)
        self._is_notified = False
        self._source: NotificationSource | None = None
        self._reopen_at = 0.0
        self._has_warned = False
        self._has_logged_polling = False

    def notify(self) -> None:
        """Wake the waiting thread, for example because an event was appended."""
        if self._is_notified:
            return
        self._is_notified = True
        # An error means that the socket is full, so a wakeup is pending, or closed, so nobody waits.
        with contextlib.suppress(OSError):
            self._wakeup_sender.send(b"\0")

    def wait(self, seconds: float, *, eagerly: bool) -> None:
        """Return when it is time to read the log: after a notification, or after that time.

        Without `eagerly`, no client is waiting for events, and the database is not asked for notifications.
        """
        if eagerly and self._source is None and time.monotonic() >= self._reopen_at:
            # A new source does not report earlier commits, so the caller must read before it waits.
            self._open()
            return
        source = self._source if eagerly and self._source is not None else NoSource()
        try:
            source.wait(self._wakeup, seconds)
        except self._driver_errors as error:
            self._source_failed(error)
        with contextlib.suppress(BlockingIOError):
            while self._wakeup.recv(4096):
                pass
        # Cleared before the caller reads, so that a later append notifies again.
        self._is_notified = False

    def _open(self) -> None:
        try:
            if not self._ask_database:
                self._source = NoSource()
            elif self._database.is_sqlite:
                self._source = SqliteDataVersion(self._database)
            else:
                self._source = self._open_postgres()
            self._has_warned = False
        except self._driver_errors as error:
            self._source_failed(error)

    def _open_postgres(self) -> NotificationSource:
        connection = _own_connection(self._database)
        try:
            connection.autocommit = True
            if not connection.is_pooled:
                return PostgresListener(connection)
            source = PostgresPolling(connection)
        except BaseException:
            connection.close()
            raise
        if not self._has_logged_polling:
            self._has_logged_polling = True
            log_event(
                _log.info,
                "event_notifications_polled",
                poll_seconds=_POOLED_POLL_SECONDS,
                hint="LISTEN does not work behind a connection pooler; with a pooler in session mode, add pooler=session to"
                " hub.database",
            )
        return source

    def _source_failed(self, error: Exception) -> None:
        if not self._has_warned:
            self._has_warned = True
            log_event(
                _log.warning,
                "event_notifications_failed",
                retry_in_seconds=_REOPEN_SECONDS,
                reason=str(error),
                hint="until then the log is polled, and events arrive later",
            )
        self._reopen_at = time.monotonic() + _REOPEN_SECONDS
        if self._source is not None:
            with contextlib.suppress(*self._driver_errors):
                self._source.close()
            self._source = None

    def close(self) -> None:
        if self._source is not None:
            with contextlib.suppress(*self._driver_errors):
                self._source.close()
        self._wakeup.close()
        self._wakeup_sender.close()


def _readable(seconds: float, *ones: Any) -> list[Any]:
    """Wait until a socket is readable, and return those that are.

    `select.select` cannot be used: it works only for file descriptors below 1,024, and every client has one.
    """
    with selectors.DefaultSelector() as selector:
        for one in ones:
            selector.register(one, selectors.EVENT_READ)
        return [key.fileobj for key, _ in selector.select(seconds)]


def _own_connection(database: Database) -> Any:
    """Return a connection that is detached from the pool."""
    pooled = database.engine.raw_connection()
    own = pooled.driver_connection
    # Read before `detach`, which clears the attribute.
    pooled.detach()
    return own
