"""An answer that has not come yet. The same object is awaited on an event loop or waited for by a plain thread.

The ledger's coroutines await nothing but these (and the caller's own effect). On an event loop the await becomes a
future of that loop. Where a *driver* runs the coroutine instead (`blocking.py`, the simulator), the await hands the
pending object itself to the driver, which waits as it sees fit.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any, Generic, TypeVar

from onceward.errors import StoreUnavailable

T = TypeVar("T")

# How long a caller waits for one answer before it is told that the store is unavailable.
ANSWER_SECONDS = 5.0

_driver = threading.local()


class driving:  # noqa: N801  # used as a function
    """While this is open, coroutines stepped on this thread hand their pendings to the one who steps them."""

    __slots__ = ("_outer",)

    def __enter__(self) -> None:
        self._outer = getattr(_driver, "loop", _NOBODY)
        _driver.loop = running_loop()

    def __exit__(self, *raised: object) -> None:
        _driver.loop = self._outer


def driven() -> bool:
    """Whether a driver, and not an event loop, steps the current coroutine.

    An effect may start an event loop of its own inside a driver; that loop is not the one the driver started under.
    """
    return getattr(_driver, "loop", _NOBODY) is running_loop()


# As `asyncio.get_running_loop`, without an exception where there is none.
running_loop: Callable[[], asyncio.AbstractEventLoop | None] = asyncio._get_running_loop  # noqa: SLF001  # exported, for loops


_NOBODY = object()


class Patience:
    """Ends waits for an answer that last too long. One timer of a loop serves all of them: nearly every answer comes
    long before, and setting and cancelling a timer for each costs more than the wait itself.
    """

    __slots__ = ("_armed", "_waits", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._waits: deque[tuple[float, asyncio.Future[None]]] = deque()
        self._armed = False

    def lend(self, future: asyncio.Future[None]) -> None:
        """Wake the future when its time is up, if nothing did before."""
        waits = self._waits
        while waits and waits[0][1].done():
            waits.popleft()
        waits.append((self.loop.time() + ANSWER_SECONDS, future))
        if not self._armed:
            self._armed = True
            self.loop.call_later(ANSWER_SECONDS, self._run_out)

    def _run_out(self) -> None:
        waits, now = self._waits, self.loop.time()
        while waits and (waits[0][0] <= now or waits[0][1].done()):
            wake(waits.popleft()[1])
        self._armed = bool(waits)
        if waits:
            self.loop.call_later(waits[0][0] - now, self._run_out)


def _patience_of(loop: asyncio.AbstractEventLoop) -> Patience:
    """A thread runs one loop at a time; what is remembered of an earlier one is let go."""
    patience: Patience | None = getattr(_driver, "patience", None)
    if patience is None or patience.loop is not loop:
        patience = _driver.patience = Patience(loop)
    return patience


class Pending(Generic[T]):
    """One answer for one waiter. `patience` bounds the wait; running out of it leaves the pending alive."""

    __slots__ = ("_error", "_future", "_lock", "_loop", "_mutex", "_result", "abandoned", "done", "patience")

    def __init__(self, mutex: threading.Lock, patience: float) -> None:
        self._mutex = mutex
        self.patience = patience
        self.done = False
        self.abandoned = False
        self._result: T | None = None
        self._error: Exception | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._future: asyncio.Future[None] | None = None
        self._lock: threading.Lock | None = None

    def __await__(self) -> Generator[Any, Any, T]:
        if not self.done:
            loop = running_loop()
            if getattr(_driver, "loop", _NOBODY) is loop:  # as `driven()`
                yield self
            else:
                yield from self._on_loop(loop or asyncio.get_running_loop())
        return self.result()

    def _on_loop(self, loop: asyncio.AbstractEventLoop) -> Generator[Any, Any, None]:
        future = loop.create_future()
        with self._mutex:
            if self.done:
                return
            self._loop, self._future = loop, future
        self.on_loop(loop)
        timer = None
        if self.patience == ANSWER_SECONDS:
            _patience_of(loop).lend(future)
        else:
            timer = loop.call_later(self.patience, wake, future)
        try:
            yield from future
        except BaseException:
            self.abandon()
            raise
        finally:
            if timer is not None:
                timer.cancel()

    def block(self) -> None:
        """Wait on this thread, at most as long as patience lasts."""
        try:
            self.on_thread()
            if self.done:
                return
            lock = threading.Lock()
            lock.acquire()
            with self._mutex:
                if self.done:
                    return  # type: ignore[unreachable]  # another thread may have brought it meanwhile
                self._lock = lock
            lock.acquire(timeout=self.patience)
        except BaseException:
            self.abandon()
            raise

    def on_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        """Called when a loop begins to wait."""

    def on_thread(self) -> None:
        """Called when a thread begins to wait; it may bring the answer itself."""

    def abandon(self) -> None:
        """Nobody waits any more. What is still queued is withdrawn where that is safe; see the batcher."""
        with self._mutex:
            self.abandoned = True

    @property
    def failed(self) -> bool:
        return self._error is not None

    def result(self) -> T:
        if self._error is not None:
            raise self._error
        if not self.done:
            raise StoreUnavailable(f"the store gave no answer within {self.patience:g} s")
        return self._result  # type: ignore[return-value]  # done and no error: a T was set

    def resolve(self, result: T | None, error: Exception | None) -> asyncio.AbstractEventLoop | None:
        """Set the answer; the caller holds the mutex. Returns the loop that must be told, by `wake`, if there is one."""
        if self.done:
            return None
        self._result, self._error = result, error
        self.done = True  # the last: a thread may look at it without the mutex
        if self._lock is not None:
            self._lock.release()
        return self._loop

    @property
    def future(self) -> asyncio.Future[None] | None:
        return self._future


def tell(results: Sequence[tuple[Pending[T], T | None, Exception | None]]) -> None:
    """Hand over answers, waking each event loop once. The caller holds the pendings' mutex."""
    loops: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
    for pending, result, error in results:
        loop = pending.resolve(result, error)
        if loop is not None and pending.future is not None:
            loops.setdefault(loop, []).append(pending.future)
    for loop, futures in loops.items():
        _wake_on(loop, futures)


def tell_one(pending: Pending[T], result: T) -> None:
    """As `tell`, for one answer alone."""
    loop = pending.resolve(result, None)
    if loop is not None and pending.future is not None:
        _wake_on(loop, (pending.future,))


def _wake_on(loop: asyncio.AbstractEventLoop, futures: Iterable[asyncio.Future[None]]) -> None:
    # A loop that was closed with its callers hears of nothing; the answers are recorded in the store.
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(wake, *futures)


def wake(*futures: asyncio.Future[None]) -> None:
    """Runs on the futures' own loop."""
    for future in futures:
        if not future.done():
            future.set_result(None)
