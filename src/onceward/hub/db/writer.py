"""The one writer of a process: a thread that commits the work of all callers in shared transactions.

Theory of operation
===================

A commit waits for the disk, and costs much more than the statements before it. So the writer does everything that was
queued during one commit in the next transaction: one sync and one wakeup for all of it (`batch_thread.py`).

    queue ──► batch: works in order ──► events of all works ──► COMMIT ──► results to all callers
                 │ one statement or a few,      │ one statement,
                 │ rows in key order            │ takes the order lock of PostgreSQL

A work is a function of the transaction. A *batch work* is one function for all queued items of its kind, which writes
them with a few multi-row statements. Both may be generators that yield their events (`append.py`). The writer collects
the events of all works, and appends them with the last statement before the commit. On PostgreSQL that statement takes
the lock that orders event ids, so the lock is held for one statement and the commit, and after all row locks.

Works are independent. A refusal, such as an unknown id, is the result of its work and does not touch the others: it is
raised before the work has written anything. If a work raises after it wrote something, or the database refuses a
statement, the batch is rolled back and each work is done in a transaction of its own. Then the failing work fails alone.

    what happens                                 consequence
    a work refuses                               its caller gets the error; the batch goes on
    a statement fails, or a work raises late     rollback; each work runs again, alone
    deadlock, serialization failure              the same; alone, a work is tried a few times
    the connection was lost before the commit    the batch runs again on a new connection, once
    the database is unavailable                  all callers of the batch get `StoreUnavailable`
    the commit fails                             the same: it may have been applied, and nothing is run again
    a work takes long                            the works behind it go into the next batch
    a caller is cancelled                        its work is withdrawn, or finishes if it runs
    the database is closed                       everything queued is still committed; new work is refused

The works of a batch run in the order of their `order` keys, and the rows of a batch work in the order of their unique
keys. All processes use the same order, so that their transactions do not wait for each other in a cycle.
"""

from __future__ import annotations

import contextlib
import operator
import sqlite3
import time
import types
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import sqlalchemy
from sqlalchemy import event

from onceward.errors import OncewardError, StoreOverloaded, StoreUnavailable
from onceward.hub.db.append import EventSteps, MarkedEvent, NewEvent, append, finish
from onceward.hub.db.batch_thread import BatchThread, KeptConnection, QueuedItem
from onceward.hub.db.raw_sql import sqlite_connection

if TYPE_CHECKING:
    from onceward.hub.db.engine import Database

Item = TypeVar("Item")
T = TypeVar("T")

# More items would not make a batch cheaper for each of them, and the first would wait for the last.
BATCH_MAX = 128
# A batch that has taken this long is committed; the works that are left go into the next one.
BATCH_SECONDS = 0.05
# Attempts at one work after deadlocks and serialization failures.
ATTEMPTS_MAX = 4

# PostgreSQL: a deadlock, a serialization failure, a unique key that another transaction has just inserted.
CONFLICT_STATES = frozenset({"40P01", "40001", "23505"})

_WROTE = "onceward_wrote"


class BatchWork(Generic[Item, T]):
    """A kind of work that is done for all queued items together.

    Args:
        name: A unique name. The works of a batch are done in the order of their names.
        run: Writes the items in one transaction. It returns the result of each, or the error that refuses it.
        order: The sort key of an item, the same for all processes.
    """

    def __init__(
        self,
        name: str,
        run: Callable[[sqlalchemy.Connection, Sequence[Item]], EventSteps[Sequence[T | OncewardError]]],
        order: Callable[[Item], Any],
    ) -> None:
        self.name = name
        self.run = run
        self.order = order


class _SingleWork:
    """A function of the transaction, and the place of its locks among those of other works."""

    __slots__ = ("order", "run")

    def __init__(self, run: Callable[[sqlalchemy.Connection], Any], order: tuple[str, ...]) -> None:
        self.run = run
        self.order = order


class _Group:
    """Items that one call does together: those of a `BatchWork`, or a single one."""

    __slots__ = ("items", "work")

    def __init__(self, work: BatchWork[Any, Any] | _SingleWork, items: list[QueuedItem[Any]]) -> None:
        self.work = work
        self.items = items

    def begin(self, tx: sqlalchemy.Connection) -> Any:
        """Write the rows; return the generator that yields the events, or the result."""
        if isinstance(self.work, _SingleWork):
            return self.work.run(tx)
        return self.work.run(tx, [item.work[1] for item in self.items])

    def results(self, result: Any) -> Sequence[Any]:
        return [result] if isinstance(self.work, _SingleWork) else result

    def each(self) -> list[_Group]:
        return [_Group(self.work, [item]) for item in self.items]


class Writer:
    """The writer of one database. `run`, `append` and `add` are for tasks of an event loop, the others for threads.

    Args:
        database: The database to write to.

    Attributes:
        appended: Called, in the writer's thread, after each commit that appended events.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._connection = KeptConnection(database.engine, _noting_writes)
        self._thread = BatchThread("onceward-writer", self._run, BATCH_MAX, self._connection.close)
        self.appended: Callable[[], None] = lambda: None

    async def run(self, work: Callable[[sqlalchemy.Connection], EventSteps[T] | T], order: tuple[str, ...] = ()) -> T:
        """Run a work in the next batch, and return its result after the commit.

        Args:
            work: Reads and writes. It may be rolled back and run again. It refuses with an exception before it has
                written anything.
            order: The place of its row locks among those of other works; empty if it takes none that others want.

        Returns:
            The result of the work.

        Raises:
            errors.StoreUnavailable: The database did not respond. The work may have been committed.
            errors.StoreClosed: The database is closed. Nothing was written.
            Exception: An exception of the work. Nothing was written.
        """
        result: T = await self._thread.submit((_SingleWork(work, order), None))
        return result

    async def append(self, work: Callable[[sqlalchemy.Connection], EventSteps[T]], order: tuple[str, ...] = ()) -> T:
        """Run a work that yields its events once, as `run` does."""
        result: T = await self._thread.submit((_SingleWork(work, order), None))
        return result

    async def add(self, work: BatchWork[Item, T], item: Item) -> T:
        """Do the work for this item in the next batch, and return its result after the commit. Raises as `run`."""
        result: T = await self._thread.submit((work, item))
        return result

    def run_blocking(self, work: Callable[[sqlalchemy.Connection], T], order: tuple[str, ...] = ()) -> T:
        """Run a work as `run` does, from a thread that is not the event loop's."""
        result: T = self._thread.submit_blocking((_SingleWork(work, order), None))
        return result

    def append_blocking(self, work: Callable[[sqlalchemy.Connection], EventSteps[T]], order: tuple[str, ...] = ()) -> T:
        """Run a work that yields its events once, as `run_blocking` does."""
        result: T = self._thread.submit_blocking((_SingleWork(work, order), None))
        return result

    def post(self, work: Callable[[sqlalchemy.Connection], object], failed: Callable[[BaseException], object]) -> None:
        """Run a work in the next batch without waiting for it. `failed` is called in the writer's thread if it fails.

        Raises `StoreClosed` if the database is closed.
        """
        self._thread.post((_SingleWork(work, ()), None), failed)

    def close(self) -> None:
        """Commit everything that is queued, and end the thread."""
        self._thread.close()

    # In the writer's thread.

    def _run(self, items: Sequence[QueuedItem[Any]]) -> None:
        groups = _grouped(items)
        while groups:
            groups = self._commit(groups)

    def _commit(self, groups: list[_Group]) -> list[_Group]:
        """Commit as many groups as fit into a batch, and return those that are left."""
        for is_last in (False, True):
            try:
                return self._attempt(groups)
            except _CommitFailedError as error:
                raise error.cause from error
            except Exception as error:
                if not _is_down(error):
                    if len(groups) == 1 and len(groups[0].items) == 1:
                        self._finish_alone(groups[0], error)
                        return []
                    break
                if is_last or not _lost_connection(error):
                    raise
                # The server had closed the idle connection. Nothing was committed.
        for group in groups:
            for alone in group.each():
                self._commit_alone(alone)
        return []

    def _commit_alone(self, group: _Group) -> None:
        try:
            self._attempt([group])
        except _CommitFailedError as error:
            raise error.cause from error
        except Exception as error:
            if _is_down(error):
                raise
            self._finish_alone(group, error)

    def _finish_alone(self, group: _Group, error: Exception) -> None:
        """Try a single work again that lost against another transaction; fail it otherwise."""
        for _ in range(ATTEMPTS_MAX - 1):
            if not is_conflict(error):
                break
            try:
                self._attempt([group])
            except _CommitFailedError as failure:
                raise failure.cause from failure
            except Exception as again:  # noqa: BLE001  # examined by the loop, and raised in the caller
                error = again
            else:
                return
        group.items[0].fail(error)

    def _attempt(self, groups: list[_Group]) -> list[_Group]:
        """Run groups in one transaction, commit it, and finish their items. Raises if everything was rolled back."""
        outcomes: list[tuple[_Group, Any]] = []
        with self._transaction() as tx:
            begun, new, left = self._begin_all(tx, groups)
            ids = append(tx, new)
            at = 0
            for group, result, count in begun:
                if count is not None:
                    outcomes.append((group, finish(result, ids[at : at + count])))
                    at += count
                else:
                    outcomes.append((group, result))
        for group, outcome in outcomes:
            _finish_items(group, outcome)
        if new:
            self.appended()
        return left

    def _begin_all(
        self, tx: sqlalchemy.Connection, groups: list[_Group]
    ) -> tuple[list[tuple[_Group, Any, int | None]], list[NewEvent | MarkedEvent], list[_Group]]:
        begun: list[tuple[_Group, Any, int | None]] = []
        new: list[NewEvent | MarkedEvent] = []
        until = time.monotonic() + BATCH_SECONDS
        for number, group in enumerate(groups):
            if number and time.monotonic() > until:
                return begun, new, groups[number:]
            wrote = self._writes(tx)
            try:
                result = group.begin(tx)
                if isinstance(result, types.GeneratorType):
                    try:
                        events = next(result)
                    except StopIteration as done:
                        result = done.value
                    else:
                        begun.append((group, result, len(events)))
                        new += events
                        continue
            except Exception as error:
                if isinstance(group.work, BatchWork) or _is_of_database(error) or self._writes(tx) != wrote:
                    raise
                result = _Refusal(error)
            begun.append((group, result, None))
        return begun, new, []

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlalchemy.Connection]:
        database = self._database
        with database.translating_errors(), database.writing():
            connection = self._connection.get()
            try:
                transaction = connection.begin()
                try:
                    yield connection
                except BaseException:
                    with contextlib.suppress(sqlalchemy.exc.SQLAlchemyError):
                        transaction.rollback()
                    raise
                try:
                    transaction.commit()
                except Exception as error:
                    raise _CommitFailedError(database.translated(error)) from error
            except BaseException as error:
                if connection.invalidated or _is_of_database(error) or isinstance(error, _CommitFailedError):
                    self._connection.close()
                raise
            database.committed(database.changed_rows(connection))

    def _writes(self, tx: sqlalchemy.Connection) -> int:
        """Return a number that grows with each row that the transaction writes."""
        if self._database.is_sqlite:
            return sqlite_connection(tx.connection).total_changes
        count: int = tx.info.get(_WROTE, 0)
        return count


class _CommitFailedError(Exception):
    """The commit failed, and may have been applied."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


class _Refusal:
    """The exception of a work that has written nothing."""

    __slots__ = ("error",)

    def __init__(self, error: Exception) -> None:
        self.error = error


def _grouped(items: Sequence[QueuedItem[Any]]) -> list[_Group]:
    """Group the items by their work, in the order in which every process does them."""
    batches: dict[str, tuple[BatchWork[Any, Any], list[QueuedItem[Any]]]] = {}
    single: list[tuple[tuple[str, ...], _Group]] = []
    for item in items:
        work = item.work[0]
        if isinstance(work, _SingleWork):
            single.append((work.order, _Group(work, [item])))
        else:
            batches.setdefault(work.name, (work, []))[1].append(item)
    single.sort(key=operator.itemgetter(0))
    groups = [group for _, group in single]
    for _, (batch_work, its_items) in sorted(batches.items(), key=operator.itemgetter(0)):
        order = batch_work.order
        groups.append(_Group(batch_work, sorted(its_items, key=lambda item: order(item.work[1]))))
    return groups


def _finish_items(group: _Group, outcome: Any) -> None:
    if isinstance(outcome, _Refusal):
        group.items[0].fail(outcome.error)
        return
    for item, result in zip(group.items, group.results(outcome), strict=True):
        if isinstance(group.work, BatchWork) and isinstance(result, OncewardError):
            item.fail(result)
        else:
            item.succeed(result)


def _noting_writes(connection: sqlalchemy.Connection) -> sqlalchemy.Connection:
    if connection.dialect.name != "sqlite":
        event.listen(connection, "after_cursor_execute", _note_write)
    return connection


def _note_write(
    connection: sqlalchemy.Connection, cursor: Any, statement: str, _parameters: Any, _context: Any, _many: bool
) -> None:
    if cursor.rowcount and statement.lstrip()[:6].upper() != "SELECT":
        connection.info[_WROTE] = connection.info.get(_WROTE, 0) + 1


def _is_of_database(error: BaseException) -> bool:
    return isinstance(error, (sqlalchemy.exc.SQLAlchemyError, StoreUnavailable))


def _lost_connection(error: Exception) -> bool:
    cause = error.__cause__
    if isinstance(error, StoreOverloaded):
        return False
    return isinstance(cause, sqlalchemy.exc.DBAPIError) and cause.connection_invalidated


def _is_down(error: Exception) -> bool:
    """Return whether the database is unavailable, as opposed to a statement that failed."""
    if not isinstance(error, StoreUnavailable):
        return False
    return not any(
        getattr(cause, "sqlstate", None) in CONFLICT_STATES
        or getattr(cause, "sqlite_errorcode", None) == sqlite3.SQLITE_ERROR
        for cause in _causes(error)
    )


def is_conflict(error: BaseException) -> bool:
    """Return whether a transaction lost against another one of PostgreSQL, so that it can be tried again."""
    return any(getattr(cause, "sqlstate", None) in CONFLICT_STATES for cause in _causes(error))


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield the driver's exceptions behind an error."""
    while error is not None:
        if isinstance(error, sqlalchemy.exc.DBAPIError) and error.orig is not None:
            yield error.orig
        error = error.__cause__
