"""Exactly once: a claim settled inside the caller's own transaction, so that effect and outcome commit together.

    claim = current_claim()
    with connection.transaction():
        bound = claim.bind(connection)        # await it on async connections
        connection.execute("INSERT INTO payments …")
        bound.settle({"paid": 42})            # awaited on async connections

Binding locks the claim's row, so the open transaction itself is the proof of life and renewal stops. Until that
transaction ends, any other ledger write of the same task is refused: it might wait for the transaction for ever.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextvars import ContextVar
from typing import Any, Generic, Protocol, TypeVar, cast, runtime_checkable

from onceward.core.claim import Entry
from onceward.core.outcome import INLINE_BYTES_MAX, Outcome, cut, pack
from onceward.errors import InsideBoundTransaction, InvalidOption, TransactionConflict
from onceward.store.bind import ENDED, Binding, Steps
from onceward.store.write_id import write_id

_current: ContextVar[Bound[Any] | None] = ContextVar("onceward_bound", default=None)

# What `settle` gives: nothing on a synchronous connection, something to await on an asynchronous one.
S_co = TypeVar("S_co", covariant=True)


class SyncConnection(Protocol):
    """How a type checker knows the connections of `sqlite3`, psycopg and SQLAlchemy."""

    def commit(self) -> None: ...


class AsyncConnection(Protocol):
    """How a type checker knows their asynchronous forms."""

    def commit(self) -> Coroutine[Any, Any, None]: ...


@runtime_checkable
class Bindable(Protocol):
    """A store whose rows live in a database that callers can open transactions on."""

    def bind(self, connection: object) -> Binding: ...


class Bound(Generic[S_co]):
    """A claim bound to a transaction. `settled` once its outcome is written there.

    `Bound[None]` on a synchronous connection, `Bound[Awaitable[None]]` on an asynchronous one.
    """

    def __init__(self, binding: Binding, entry: Entry, retain: int, result_bytes_max: int) -> None:
        self._binding = binding
        self._entry = entry
        self.retain = retain
        self._result_bytes_max = result_bytes_max
        self._locked_in: object = None  # the transaction, as its binding tells it from others
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
    ) -> Bound[Any]:
        """Stop renewing, then lock the entry in the caller's transaction (an async connection locks when awaited)."""
        if not isinstance(store, Bindable):
            raise InvalidOption("bind() needs a ledger on SQLite or PostgreSQL")
        binding = store.bind(connection)
        suspend()
        bound: Bound[Any] = cls(binding, entry, retain, result_bytes_max)
        if not binding.session.is_async:
            binding.run(bound._lock())
        return bound

    def __await__(self: Bound[Awaitable[None]]) -> Generator[Any, Any, Bound[Awaitable[None]]]:
        yield from self._binding.arun(self._lock()).__await__()
        return self

    @property
    def is_async(self) -> bool:
        """Whether binding and settling are awaited."""
        return self._binding.session.is_async

    @property
    def open(self) -> bool:
        """Whether the caller's transaction is still open."""
        return self._binding.session.in_transaction()

    def settle(self, value: object) -> S_co:
        """Record the result in the transaction. Awaited on async connections."""
        self.value = value
        body = pack(value, self._result_bytes_max)
        if body is None or len(body) <= INLINE_BYTES_MAX:
            return self.settle_outcome(Outcome(body=body))
        chunks = cut(body)
        return self.settle_outcome(Outcome(chunks=len(chunks)), chunks)

    def settle_outcome(self, outcome: Outcome, chunks: tuple[bytes, ...] = ()) -> S_co:
        """Record an outcome as it stands, with the chunks it counts. Awaited on async connections."""
        steps = self._settle(outcome, chunks)
        if self._binding.session.is_async:
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
        yield from self._binding.settle(self._entry, outcome, chunks, write_id(), self.retain, self._locked_in)
        self.settled = True
        return None


def inside_bound() -> bool:
    """Whether this task has a transaction open that a claim was bound to, or was to be bound to."""
    bound = _current.get()
    return bound is not None and bound.open


def refuse_inside_bound() -> None:
    if inside_bound():
        raise InsideBoundTransaction(
            "this task has a bound transaction open; end it before any other ledger call (or use another task)"
        )


def forget_bound() -> None:
    """The effect is over; what it bound is no longer this task's concern."""
    _current.set(None)
