"""Exactly once: settle a claim inside the caller's own transaction, so that effect and outcome commit together.

    claim = current_claim()
    with connection.transaction():
        bound = claim.bind(connection)        # await it on async connections
        connection.execute("INSERT INTO payments …")
        bound.settle({"paid": 42})            # await it on async connections

Binding locks the row of the claim. The open transaction is then the proof of life, so renewal stops. Until it ends, all
other ledger writes of the same task are refused, because they might wait for the transaction forever.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextvars import ContextVar
from typing import Any, Generic, NoReturn, Protocol, TypeVar, cast, runtime_checkable

from onceward.core.claim import Entry
from onceward.core.outcome import INLINE_BYTES_MAX, Outcome, cut, pack
from onceward.errors import InsideBoundTransaction, InvalidOption, TransactionConflict
from onceward.store.bind import ENDED, BoundConnection, Steps
from onceward.store.write_id import write_id

_current: ContextVar[Bound[Any] | None] = ContextVar("onceward_bound", default=None)

# The return type of `settle`: None on a synchronous connection, an awaitable on an asynchronous one.
S_co = TypeVar("S_co", covariant=True)


class SyncConnection(Protocol):
    """The synchronous connections of `sqlite3`, psycopg, SQLAlchemy and Django, for type checkers."""

    def commit(self) -> None: ...


class AsyncConnection(Protocol):
    """The asynchronous connections of psycopg and SQLAlchemy, for type checkers."""

    def commit(self) -> Coroutine[Any, Any, None]: ...


@runtime_checkable
class Bindable(Protocol):
    """A store that keeps its rows in a database on which callers can open transactions."""

    def bind(self, connection: object) -> BoundConnection: ...


class Bound(Generic[S_co]):
    """A claim that is bound to a transaction.

    The type is `Bound[None]` on a synchronous connection and `Bound[Awaitable[None]]` on an asynchronous one.

    Attributes:
        settled: Whether the outcome was written in the transaction.
        value: The value that was settled.
        retain: The retention of the outcome in microseconds.
        refuse: The `Move.refuse` of the outcome.
    """

    def __init__(
        self, binding: BoundConnection, entry: Entry, retain: int, result_bytes_max: int, refuse: int = 0
    ) -> None:
        self._binding = binding
        self._entry = entry
        self.retain = retain
        self.refuse = refuse
        self._result_bytes_max = result_bytes_max
        self._locked_in: object = None  # identifies the transaction that holds the lock; None before it
        self._holds_outcome: Callable[[], bool] | None = None  # whether the open transaction still contains the outcome
        self.settled = False
        self.value: object = None
        _current.set(self)

    @classmethod
    def to(
        cls,
        store: object,
        entry: Entry,
        connection: object,
        retain: int,
        result_bytes_max: int,
        suspend: Callable[[], None],
        refuse: int = 0,
    ) -> Bound[Any]:
        """Stop renewing, then lock the entry in the caller's transaction (on an async connection, when awaited)."""
        if not isinstance(store, Bindable):
            raise InvalidOption("bind() needs a ledger on SQLite or PostgreSQL")
        binding = store.bind(connection)
        suspend()
        bound: Bound[Any] = cls(binding, entry, retain, result_bytes_max, refuse)
        if not binding.connection.is_async:
            binding.run(bound._lock())
        return bound

    def __await__(self: Bound[Awaitable[None]]) -> Generator[Any, Any, Bound[Awaitable[None]]]:
        yield from self._binding.arun(self._lock()).__await__()
        return self

    @property
    def is_async(self) -> bool:
        """True if binding and settling must be awaited."""
        return self._binding.connection.is_async

    @property
    def open(self) -> bool:
        """True if the caller's transaction is still open."""
        return self._binding.connection.in_transaction()

    @property
    def undone(self) -> bool:
        """True if a savepoint with the outcome was rolled back, while the transaction is still open.

        Only Django reports this.
        """
        return self._holds_outcome is not None and self.open and not self._holds_outcome()

    def settle(self, value: object) -> S_co:
        """Record the result of the effect in the transaction. Await it on an async connection.

        Args:
            value: The result. If it cannot be stored, the key is settled without it.

        Returns:
            None, or an awaitable on an async connection.

        Raises:
            ClaimLost: If the claim was taken over. Roll the transaction back.
            TransactionConflict: If the transaction has ended, or is not the one that the claim was bound to.
            StoreUnavailable: If a statement fails.
        """
        self.value = value
        body = pack(value, self._result_bytes_max)
        if body is None or len(body) <= INLINE_BYTES_MAX:
            return self.settle_outcome(Outcome(body=body))
        chunks = cut(body)
        return self.settle_outcome(Outcome(chunks=len(chunks)), chunks)

    def settle_outcome(self, outcome: Outcome, chunks: tuple[bytes, ...] = ()) -> S_co:
        """Record an outcome as it is, with its chunks. Await it on an async connection.

        Args:
            outcome: The outcome to record.
            chunks: The chunks that the outcome counts.

        Returns:
            None, or an awaitable on an async connection.

        Raises:
            ClaimLost: If the claim was taken over. Roll the transaction back.
            TransactionConflict: If the transaction has ended, or is not the one that the claim was bound to.
            StoreUnavailable: If a statement fails.
        """
        steps = self._settle(outcome, chunks)
        if self._binding.connection.is_async:
            return cast("S_co", self._binding.arun(steps))
        self._binding.run(steps)
        return cast("S_co", None)

    def _lock(self) -> Steps:
        if self._locked_in is None:
            self._locked_in = yield from self._binding.lock(self._entry)
        return None

    def _settle(self, outcome: Outcome, chunks: tuple[bytes, ...]) -> Steps:
        if self._locked_in is not None and not self.open:
            raise TransactionConflict(ENDED)
        yield from self._lock()
        yield from self._binding.settle(
            self._entry, outcome, chunks, write_id(), self.retain, self._locked_in, self.refuse
        )
        mark = self._binding.connection.mark
        self._holds_outcome = None if mark is None else mark()
        self.settled = True
        return None


def inside_bound() -> bool:
    """Return whether this task called `bind` on a transaction that is still open, even if the binding failed."""
    bound = _current.get()
    return bound is not None and bound.open


def refuse_inside_bound() -> None:
    if inside_bound():
        refuse_bound()


def refuse_bound() -> NoReturn:
    raise InsideBoundTransaction(
        "this task has an open bound transaction; end it before any other ledger call, or use another task"
    )


def forget_bound() -> None:
    """Forget the bound transaction of this task after its effect has ended."""
    _current.set(None)
