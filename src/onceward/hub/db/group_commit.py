"""Group commit: work of several threads in one transaction.

SQLite has one writer at a time, and every commit waits for the disk. So one thread, the leader, commits the work of all
threads that wait, instead of each thread committing its own.

The works are independent: one that raises is rolled back and raises in its own caller, and the others commit.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Generic, TypeVar

import sqlalchemy

from onceward.errors import OncewardError, StoreUnavailable

T = TypeVar("T")

# The most works in one transaction.
SHARED_MAX = 64


class _OneRaisedError(Exception):
    """Raised by one of several works."""


class _Member(Generic[T]):
    """A caller and its work. A follower sleeps until its work is done or it becomes the leader."""

    def __init__(self, first: Callable[[], object], work: Callable[[sqlalchemy.Connection], T]) -> None:
        self.first = first
        self.work = work
        self.done = False
        self.leads = False
        self.result: T | None = None
        self.error: BaseException | None = None
        self.wakeup = threading.Lock()
        self.wakeup.acquire()

    def outcome(self) -> T:
        if self.error is not None:
            raise self.error
        return self.result  # type: ignore[return-value]  # done and no error: a T was set


class GroupCommit:
    """Group commit of one kind of work: the first caller leads and commits for all, the others follow.

    `write` opens the transaction, `translating_errors` translates errors of the database, and `within` is entered
    around both.
    """

    def __init__(
        self,
        write: Callable[[], AbstractContextManager[sqlalchemy.Connection]],
        translating_errors: Callable[[], AbstractContextManager[None]],
        within: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._write = write
        self._translating_errors = translating_errors
        self._within = within
        self._lock = threading.Lock()  # guards the attributes below
        self._waiting: list[_Member[object]] = []
        self._has_leader = False

    def do(self, first: Callable[[], object], work: Callable[[sqlalchemy.Connection], T]) -> T:
        """Return the result of `work` after its commit.

        `first` and `work` may run on the thread of another caller, and `work` may be rolled back and run again.
        """
        member = _Member(first, work)
        with self._lock:
            self._waiting.append(member)  # type: ignore[arg-type]  # members of every type
            member.leads, self._has_leader = not self._has_leader, True
        if not member.leads:
            self._wait(member)
        if not member.done:
            self._lead(member)
        return member.outcome()

    def _wait(self, member: _Member[T]) -> None:
        try:
            member.wakeup.acquire()
        except BaseException:
            # Interrupted: cancel the work if it has not started, and let the next member lead in place of this one.
            with self._lock:
                if not member.done and member in self._waiting:
                    self._waiting.remove(member)  # type: ignore[arg-type]
                    if member.leads:
                        self._promote_next()
            raise

    def _lead(self, own: _Member[T]) -> None:
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
                elif ready and not self._run_all(ready):
                    with self._write() as transaction:
                        self._run_each(transaction, ready)
        except BaseException as error:  # noqa: BLE001  # raised again in each caller
            failure = error
        with self._lock:
            for member in batch:
                if failure is not None and member.error is None:
                    member.error = failure if member is own else _error_for_follower(failure)
                member.done = True
                if member is not own:
                    member.wakeup.release()
            self._promote_next()

    def _run_all(self, batch: Sequence[_Member[object]]) -> bool:
        """Run all works without savepoints, which nearly always succeeds. False if one raised: all are rolled back."""
        try:
            with self._write() as transaction:
                for member in batch:
                    try:
                        member.result = member.work(transaction)
                    except Exception as error:
                        raise _OneRaisedError from error
        except _OneRaisedError:
            return False
        return True

    def _run_each(self, transaction: sqlalchemy.Connection, batch: Sequence[_Member[object]]) -> None:
        """Run each work in its own savepoint."""
        # Bypass SQLAlchemy, whose savepoints take longer than many works.
        driver = transaction.connection.driver_connection
        if driver is None:
            raise AssertionError("the transaction has no connection")
        for member in batch:
            driver.execute("SAVEPOINT member")
            try:
                with self._translating_errors():
                    member.result = member.work(transaction)
            except Exception as error:  # raised by its own caller
                if not driver.in_transaction:
                    # SQLite has rolled back the whole transaction, for example because the disk is full.
                    raise StoreUnavailable(f"the database rolled back the transaction: {error}") from error
                member.error = error
                driver.execute("ROLLBACK TO member")
            driver.execute("RELEASE member")

    def _promote_next(self) -> None:
        """Make the first waiting member the leader; the caller holds the lock."""
        self._has_leader = bool(self._waiting)
        if self._has_leader:
            leader = self._waiting[0]
            leader.leads = True
            leader.wakeup.release()


def _begun(batch: Sequence[_Member[object]]) -> list[_Member[object]]:
    """Call `first` of each member. Return the members whose call succeeded; the others get its error."""
    for member in batch:
        try:
            member.first()
        except Exception as error:  # noqa: BLE001  # raised by its own caller
            member.error = error
    return [member for member in batch if member.error is None]


def _error_for_follower(error: BaseException) -> Exception:
    """Copy the error for a follower: a shared exception would collect the tracebacks of all callers."""
    if isinstance(error, OncewardError):
        return type(error)(*error.args)
    return StoreUnavailable(f"the group commit failed: {error!r}")
