"""Work of several threads in one transaction. SQLite has one writer at a time, and every commit waits for the disk: what
threads would commit one after the other, one of them commits for all who wait meanwhile.

Each piece of work stands for itself: one that raises is undone and raises where it came from, and the others go on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Generic, TypeVar

import sqlalchemy

from onceward.errors import OncewardError, StoreUnavailable

T = TypeVar("T")

# Nobody waits for more than this before the commit.
SHARED_MAX = 64


class _OneRaisedError(Exception):
    """One of several pieces of work did."""


class _Seat(Generic[T]):
    """One piece of work and its caller, who sleeps until it is done or is to lead."""

    def __init__(self, first: Callable[[], object], work: Callable[[sqlalchemy.Connection], T]) -> None:
        self.first = first
        self.work = work
        self.done = False
        self.leads = False
        self.result: T | None = None
        self.error: BaseException | None = None
        self.bell = threading.Lock()
        self.bell.acquire()

    def answer(self) -> T:
        if self.error is not None:
            raise self.error
        return self.result  # type: ignore[return-value]  # done and no error: a T was set


class Together:
    """`write` opens the transaction; `spoken` gives an error of the database its name; `within` is entered around all."""

    def __init__(
        self,
        write: Callable[[], AbstractContextManager[sqlalchemy.Connection]],
        spoken: Callable[[], AbstractContextManager[None]],
        within: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._write = write
        self._spoken = spoken
        self._within = within
        self._lock = threading.Lock()  # guards what follows
        self._waiting: list[_Seat[object]] = []
        self._led = False

    def do(self, first: Callable[[], object], work: Callable[[sqlalchemy.Connection], T]) -> T:
        """What the work gives, once it is committed. Both may run on the thread of another caller, and the work may be
        undone and run again.
        """
        seat = _Seat(first, work)
        with self._lock:
            self._waiting.append(seat)  # type: ignore[arg-type]  # seats of every kind
            seat.leads, self._led = not self._led, True
        if not seat.leads:
            self._wait(seat)
        if not seat.done:
            self._lead(seat)
        return seat.answer()

    def _wait(self, seat: _Seat[T]) -> None:
        try:
            seat.bell.acquire()
        except BaseException:
            # Interrupted. What is not begun is not done; whoever was to lead leaves that to the next.
            with self._lock:
                if not seat.done and seat in self._waiting:
                    self._waiting.remove(seat)  # type: ignore[arg-type]
                    if seat.leads:
                        self._pass_on()
            raise

    def _lead(self, own: _Seat[T]) -> None:
        with self._lock:
            batch = self._waiting[:SHARED_MAX]
            del self._waiting[:SHARED_MAX]
        failure: BaseException | None = None
        try:
            with self._within():
                ready = _begun(batch)
                if batch == ready == [own]:
                    with self._write() as transaction:
                        own.result = own.work(transaction)
                elif ready and not self._work_at_once(ready):
                    with self._write() as transaction:
                        self._work(transaction, ready)
        except BaseException as error:  # noqa: BLE001  # it is raised again where it belongs: by each caller
            failure = error
        with self._lock:
            for seat in batch:
                if failure is not None and seat.error is None:
                    seat.error = failure if seat is own else _for_another(failure)
                seat.done = True
                if seat is not own:
                    seat.bell.release()
            self._pass_on()

    def _work_at_once(self, batch: Sequence[_Seat[object]]) -> bool:
        """Nearly always all of them do their work, and nothing needs to keep them apart. False when one did not: then
        nothing has happened.
        """
        try:
            with self._write() as transaction:
                for seat in batch:
                    try:
                        seat.result = seat.work(transaction)
                    except Exception as error:
                        raise _OneRaisedError from error
        except _OneRaisedError:
            return False
        return True

    def _work(self, transaction: sqlalchemy.Connection, batch: Sequence[_Seat[object]]) -> None:
        """Each for itself."""
        # Past SQLAlchemy, whose own savepoints cost more than what many a work does.
        driver = transaction.connection.driver_connection
        if driver is None:
            raise AssertionError("a transaction without its connection")
        for seat in batch:
            driver.execute("SAVEPOINT seat")
            try:
                with self._spoken():
                    seat.result = seat.work(transaction)
            except Exception as error:  # raised by its own caller
                if not driver.in_transaction:
                    # SQLite has ended all of it, as it does when the disk is full: nothing of the batch has happened.
                    raise StoreUnavailable(f"the database gave up the transaction: {error}") from error
                seat.error = error
                driver.execute("ROLLBACK TO seat")
            driver.execute("RELEASE seat")

    def _pass_on(self) -> None:
        """The next in line leads; the caller holds the lock."""
        self._led = bool(self._waiting)
        if self._led:
            heir = self._waiting[0]
            heir.leads = True
            heir.bell.release()


def _begun(batch: Sequence[_Seat[object]]) -> list[_Seat[object]]:
    """Those whose first step is done; the others have the reason."""
    for seat in batch:
        try:
            seat.first()
        except Exception as error:  # noqa: BLE001  # raised by its own caller
            seat.error = error
    return [seat for seat in batch if seat.error is None]


def _for_another(error: BaseException) -> Exception:
    """Each raises an exception of its own: a shared one would collect the tracebacks of all."""
    if isinstance(error, OncewardError):
        return type(error)(*error.args)
    return StoreUnavailable(f"the transaction that was shared with others failed: {error!r}")
