"""Connections of the PostgreSQL driver with a timeout, and statements that are sent without waiting for their rows."""

from __future__ import annotations

import selectors
import time
from typing import TYPE_CHECKING, TypeAlias, TypeVar, cast

from onceward.errors import InvalidStoreUrl, install_command

try:
    import psycopg
    from psycopg.conninfo import conninfo_to_dict
    from psycopg.errors import LockNotAvailable
    from psycopg.rows import TupleRow
    from psycopg.waiting import Ready, Wait
except ImportError as missing:
    raise InvalidStoreUrl(f"PostgreSQL stores need psycopg: {install_command('postgres')}") from missing

if TYPE_CHECKING:
    from psycopg.abc import PQGen

__all__ = [
    "OPEN_SECONDS",
    "DriverCursor",
    "LockNotAvailable",
    "ResultRow",
    "RunningStatement",
    "TimeoutConnection",
    "conninfo_to_dict",
    "last_rows",
    "psycopg",
    "wait_within",
]

# Opening may wait for another process that creates the tables.
OPEN_SECONDS = 20

_T = TypeVar("_T")
ResultRow: TypeAlias = TupleRow
DriverCursor: TypeAlias = "psycopg.Cursor[ResultRow]"


def wait_within(socket: int, gen: PQGen[_T], waits_for: Wait, seconds: float) -> _T:
    """Run a generator of psycopg, which yields what it waits for and is sent what is ready. Raises `TimeoutError`."""
    deadline = time.monotonic() + seconds
    try:
        with selectors.DefaultSelector() as selector:
            watched = selector.register(socket, waits_for)
            while True:
                ready = selector.select(deadline - time.monotonic())
                if not ready:
                    raise TimeoutError("the server does not respond")
                waits_for = gen.send(ready[0][1])
                if waits_for != watched.events:
                    watched = selector.modify(watched.fd, waits_for)
    except StopIteration as end:
        return cast("_T", end.value)


class TimeoutConnection(psycopg.Connection):
    """A connection with a timeout. Socket options do not help, because a frozen server still acknowledges packets."""

    seconds: float = OPEN_SECONDS
    is_pooled: bool = False  # whether each transaction may run in another session of the server
    defer_next: bool = False  # do not wait for the next statement, but leave its generator in `deferred`
    deferred: PQGen[None] | None = None

    def wait(self, gen: PQGen[_T], *_: object, **__: object) -> _T:
        """Run a generator of psycopg within `seconds`."""
        if self.defer_next:
            self.defer_next, self.deferred = False, cast("PQGen[None]", gen)
            return cast("_T", None)
        try:
            waits_for = next(gen)
        except StopIteration as end:
            return cast("_T", end.value)
        return wait_within(self.pgconn.socket, gen, waits_for, self.seconds)

    def new_cursor(self) -> DriverCursor:
        """Return a cursor for statements of the store.

        Behind a pooler, a statement and its settings are one message, so its values are part of its text, and its rows
        come as text.
        """
        return psycopg.ClientCursor(self) if self.is_pooled else self.cursor(binary=True)


class RunningStatement:
    """A statement that was sent to the server and is not finished."""

    __slots__ = ("_cursor", "_deadline", "_driver", "_gen", "_over", "_waits_for")

    def __init__(
        self, driver: TimeoutConnection, cursor: DriverCursor, sql: str, arguments: tuple[object, ...]
    ) -> None:
        self._driver = driver
        self._cursor = cursor
        self._over = False
        self._deadline = time.monotonic() + driver.seconds
        driver.defer_next = True
        try:
            self._cursor.execute(sql, arguments, prepare=not driver.is_pooled)
            gen, driver.deferred = driver.deferred, None
        finally:
            driver.defer_next = False
        if gen is None:
            raise AssertionError("the driver returned without waiting for the statement")
        self._gen = gen
        self._waits_for = next(gen)

    @property
    def must_block(self) -> bool:
        """True if the statement was only partly sent, so that a thread that can wait has to send the rest."""
        return bool(self._waits_for & Wait.W)

    def fileno(self) -> int:
        return self._driver.pgconn.socket

    def poll(self) -> bool:
        """Read what has arrived; return whether that is all."""
        try:
            self._waits_for = self._gen.send(Ready.R)
        except StopIteration:
            self._over = True
        return self._over

    def rows(self) -> list[ResultRow]:
        """Return the rows, waiting for those that have not arrived."""
        if not self._over:
            self._over = True
            left = self._deadline - time.monotonic()
            wait_within(self._driver.pgconn.socket, self._gen, self._waits_for, left)
        return last_rows(self._cursor)


def last_rows(cursor: DriverCursor) -> list[ResultRow]:
    """Return the rows of the last statement of a script."""
    while cursor.nextset():
        pass
    return cursor.fetchall()
