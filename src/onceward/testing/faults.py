"""Fault injection for your own tests: lose a request or its result, or crash or freeze at a named point.

    store = FaultyStore(open_store("memory:"))
    ledger = Ledger(store)
    store.lose_answer("settle")          # the next settle is applied, and its result is lost

Each of the `WORDS` below has two points, such as `before-settle` and `after-settle`. At an `after-` point the store has
done the work, and the caller does not have the result yet. Your own code can have points too: call `reached("charged")`.
To inject a fault into another process, start it with the environment `os.environ | fault_at("charged", "crash")`. Its
store must be a `FaultyStore`, or its code must call `reached`. Production code never imports this module. `crash`,
`freeze` and `thaw` send signals, which needs a POSIX system.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, NoReturn, TypeVar

from onceward.core.claim import Begin, Entry, Move, Ref, Status, Verb, Write, WriteResult
from onceward.errors import InvalidOption, StoreUnavailable
from onceward.ledger.transaction import Bindable
from onceward.store import Page, Reading, Store
from onceward.store.bind import BoundConnection
from onceward.store.check import check

# The operations of a store. `commit` means any write, and each word before it one kind of write.
WORDS = ("begin", *(verb.value for verb in Verb), "append", "commit", "read", "scan", "purge", "lapsed", "chunks")
POINTS = frozenset(f"{when}-{word}" for word in WORDS for when in ("before", "after"))
VARIABLE = "ONCEWARD_FAULT"

T = TypeVar("T")


@dataclass(slots=True)
class _Order:
    point: str
    action: Callable[[], object]
    times: int


class FaultyStore:
    """Wrapper that injects faults into any store. Unless a test orders a fault, calls pass through unchanged.

    Args:
        store: The store that does the work.
    """

    def __init__(self, store: Store) -> None:
        self.points: list[str] = []
        """The points passed so far, in order. A fault can be injected at each of them."""
        self._store = store
        self._lock = threading.Lock()
        self._orders: list[_Order] = []
        self._down = 0

    # Methods that order faults.

    def lose_request(self, word: str = "commit", times: int = 1) -> None:
        """Lose the next request before it reaches the store. The caller gets `StoreUnavailable` and may repeat it.

        Args:
            word: The operation whose request is lost, such as "settle", or "commit" for any write.
            times: The number of requests to lose.

        Raises:
            InvalidOption: If the operation is unknown.
        """
        self.at(f"before-{word}", _lose, times)

    def lose_answer(self, word: str = "commit", times: int = 1) -> None:
        """Lose the result of the next request. The store carries it out, but the caller gets `StoreUnavailable`.

        Args:
            word: The operation whose result is lost, such as "settle", or "commit" for any write.
            times: The number of results to lose.

        Raises:
            InvalidOption: If the operation is unknown.
        """
        self.at(f"after-{word}", _lose, times)

    def at(self, point: str, action: Callable[[], object], times: int = 1) -> None:
        """Call a function when a point is passed.

        Each pass of a point runs one action. Actions for the same point run in the order in which they were added.

        Args:
            point: The name of the point, such as "after-begin".
            action: `crash`, `freeze`, or your own function. The caller of the store gets the exceptions it raises.
            times: The number of passes at which to call it.

        Raises:
            InvalidOption: If the point is unknown.
        """
        if point not in POINTS:
            raise InvalidOption(
                f"unknown point {point!r}: use before-X or after-X, where X is one of {', '.join(WORDS)}"
            )
        with self._lock:
            self._orders.append(_Order(point, action, times))

    @contextmanager
    def unavailable(self) -> Iterator[None]:
        """Make the store unreachable inside a `with` block. Reads, writes and `check` raise `StoreUnavailable`.

        Yields:
            None. The store is reachable again after the block.
        """
        self._down += 1
        try:
            yield
        finally:
            self._down -= 1

    # The methods of a store.

    def commit(self, writes: Sequence[Write]) -> list[WriteResult]:
        """Commit a batch, passing the points of each kind of write in it and those of `commit`.

        Args:
            writes: A batch, with at most one write of each key.

        Returns:
            One result for each write, in the order of the writes.

        Raises:
            StoreUnavailable: If a fault loses the request or its result, or the store raises it.
            BatchFailed: If the store applied nothing because of one of the writes.
        """
        words = [*dict.fromkeys(map(_word, writes)), "commit"]
        return self._between(words, lambda: self._store.commit(writes))

    def read(self, refs: Sequence[Ref]) -> Reading:
        """Return the entries as stored, including expired ones, and None for those not stored.

        Args:
            refs: The identities of the entries.

        Returns:
            The entries in the order of the refs, and the time.

        Raises:
            StoreUnavailable: If a fault loses the request or its result, or the store raises it.
        """
        return self._between(["read"], lambda: self._store.read(refs))

    def scan(self, scope: str | None, status: Status | None, after: str, limit: int) -> Page:
        """Return a page of entries, in an order that the store chooses.

        Args:
            scope: Only entries of this scope, or None for all.
            status: Only entries with this status, or None for all.
            after: The cursor of the previous page, or "".
            limit: The most entries to return.

        Returns:
            The page.

        Raises:
            StoreUnavailable: If a fault loses the request or its result, or the store raises it.
        """
        return self._between(["scan"], lambda: self._store.scan(scope, status, after, limit))

    def purge(self, limit: int) -> int:
        """Delete entries whose retention is over, with their chunks.

        Args:
            limit: The most entries to delete.

        Returns:
            The number of deleted entries.

        Raises:
            StoreUnavailable: If a fault loses the request or its result, or the store raises it.
        """
        return self._between(["purge"], lambda: self._store.purge(limit))

    def lapsed(self, limit: int) -> Sequence[Entry]:
        """Return claims in progress that are not repeatable and whose lease has lapsed, the oldest lease first.

        Args:
            limit: The most claims to return.

        Returns:
            The entries of the claims.

        Raises:
            StoreUnavailable: If a fault loses the request or its result, or the store raises it.
        """
        return self._between(["lapsed"], lambda: self._store.lapsed(limit))

    def chunks(self, ref: Ref, version: int, after: int, limit: int) -> list[bytes]:
        """Return the chunks of a claim, in order.

        Args:
            ref: The identity of the entry.
            version: The version of the claim. With another version, nothing is returned.
            after: The number of the chunk after which to start.
            limit: The most chunks to return.

        Returns:
            The chunks.

        Raises:
            StoreUnavailable: If a fault loses the request or its result, or the store raises it.
        """
        return self._between(["chunks"], lambda: self._store.chunks(ref, version, after, limit))

    def check(self) -> None:
        """Check at startup that the store can be used. This passes no point.

        Raises:
            StoreUnavailable: If the store is inside an `unavailable` block, or cannot be reached.
            StoreMisconfigured: If the store cannot be used with its settings.
        """
        if self._down:
            _lose()
        check(self._store)

    def bind(self, connection: object) -> BoundConnection:
        """Bind to a caller's transaction. Its statements go directly to the database and pass no points.

        Args:
            connection: The caller's database connection or SQLAlchemy session.

        Returns:
            The bound connection of the wrapped store.

        Raises:
            InvalidOption: If the wrapped store cannot bind, or not to this connection.
        """
        if not isinstance(self._store, Bindable):
            raise InvalidOption("bind() needs a ledger on SQLite or PostgreSQL")
        return self._store.bind(connection)

    def abandon(self) -> None:
        """Forget connections inherited through a fork without using them. The next use opens new ones."""
        self._lock = threading.Lock()
        self._store.abandon()

    def close(self) -> None:
        """Release all resources of the store. Safe to call twice, and before first use."""
        self._store.close()

    def _between(self, words: Sequence[str], work: Callable[[], T]) -> T:
        for word in reversed(words):
            self._reach(f"before-{word}")
        if self._down:
            _lose()
        result = work()
        for word in words:
            self._reach(f"after-{word}")
        return result

    def _reach(self, point: str) -> None:
        action: Callable[[], object] | None = None
        with self._lock:
            self.points.append(point)
            for order in self._orders:
                if order.point == point and order.times > 0:
                    order.times -= 1
                    action = order.action
                    break
        reached(point)
        if action is not None:
            action()


# Faults that affect the whole process.


def crash() -> NoReturn:
    """Kill this process with SIGKILL. Like a power cut, it leaves no time for cleanup or output.

    Raises:
        AssertionError: Never, because the signal ends the process first.
    """
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("unreachable")


def freeze() -> None:
    """Stop this process with SIGSTOP, until another process calls `thaw`."""
    # Signal this thread. A signal to the process may reach another thread first, while this one continues for a while.
    signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)


def reached(point: str) -> None:
    """Mark a point in your own code. It does nothing unless the process was started with a fault at this point.

    Args:
        point: Any name, as passed to `fault_at`.
    """
    order = os.environ.get(VARIABLE, "")
    fault, _, where = order.partition("@")
    name, _, nth = where.rpartition("#")
    if name != point:
        return
    _passed[point] += 1
    if _passed[point] == int(nth):
        crash() if fault == "crash" else freeze()


def fault_at(point: str, fault: Literal["crash", "freeze"], nth: int = 1) -> dict[str, str]:
    """Return the environment variable that makes a process crash or freeze at a point.

    Args:
        point: A point of a `FaultyStore`, such as "before-settle", or a name that is passed to `reached`.
        fault: "crash" for SIGKILL or "freeze" for SIGSTOP.
        nth: The pass of the point at which the fault happens, counted from 1.

    Returns:
        The variable and its value, to be merged into `os.environ`.

    Raises:
        InvalidOption: If the fault is unknown, or `nth` is less than 1.
    """
    if fault not in {"crash", "freeze"} or nth < 1:
        raise InvalidOption(f"fault must be 'crash' or 'freeze' and nth at least 1, got {fault!r} and {nth}")
    return {VARIABLE: f"{fault}@{point}#{nth}"}


def wait_until_frozen(process: subprocess.Popen[Any]) -> None:
    """Wait until a child process freezes.

    Args:
        process: A child that was started with a "freeze" fault.

    Raises:
        AssertionError: If the process ends instead.
    """
    _, status = os.waitpid(process.pid, os.WUNTRACED)
    if not os.WIFSTOPPED(status):
        process.returncode = os.waitstatus_to_exitcode(status)
        raise AssertionError(f"the process ended with exit code {process.returncode} instead of freezing")


def thaw(process: subprocess.Popen[Any]) -> None:
    """Resume a frozen child process.

    Args:
        process: The child.
    """
    process.send_signal(signal.SIGCONT)


_passed: Counter[str] = Counter()


def _lose() -> NoReturn:
    raise StoreUnavailable("the test injected this fault: the request or its result was lost")


def _word(write: Write) -> str:
    return write.verb.value if isinstance(write, Move) else "begin" if isinstance(write, Begin) else "append"
