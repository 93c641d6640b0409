"""An answer that has not come yet. The same object is awaited on an event loop or waited for by a plain thread.

The ledger's coroutines await nothing but these (and the caller's own effect). On an event loop the await becomes a
future of that loop. Where a *driver* runs the coroutine instead (`blocking.py`, the simulator), the await hands the
pending object itself to the driver, which waits as it sees fit.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
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


class Waiter:
    """What a task waits for here, in place of a future of its loop: who brings the answer steps the task at once, where a
    future has it stepped a turn later, and every request that is under way in between pushes it out of the caches.

    One task waits for it, once. This much of a future is what asyncio's tasks need.
    """

    __slots__ = ("_asyncio_future_blocking", "_cancelled", "_context", "_loop", "_step")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._asyncio_future_blocking = True
        self._loop = loop
        self._step: Callable[[Waiter], object] | None = None
        self._context: contextvars.Context | None = None
        self._cancelled = False

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._loop

    def add_done_callback(
        self, step: Callable[[Waiter], object], *, context: contextvars.Context | None = None
    ) -> None:
        self._step, self._context = step, context

    def cancel(self, msg: object = None) -> bool:  # noqa: ARG002  # as tasks call it
        if self._step is None:
            return False
        self._cancelled = True
        self._loop.call_soon(self.wake)
        return True

    def result(self) -> None:
        """Asked for by the task that is stepped."""
        if self._cancelled:
            raise asyncio.CancelledError

    def done(self) -> bool:
        return self._step is None

    def wake(self) -> None:
        """Step the task that waits, unless it has been."""
        step, context = self._step, self._context
        if step is not None and context is not None:
            self._step = self._context = None
            context.run(step, self)


class Patience:
    """Ends waits for an answer that last too long. One timer of a loop serves all of them: nearly every answer comes
    long before, and setting and cancelling a timer for each costs more than the wait itself.
    """

    __slots__ = ("_armed", "_waits", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._waits: deque[tuple[float, Waiter]] = deque()
        self._armed = False

    def lend(self, waiter: Waiter) -> None:
        """Wake it when its time is up, if nothing did before."""
        waits = self._waits
        while waits and waits[0][1].done():
            waits.popleft()
        waits.append((self.loop.time() + ANSWER_SECONDS, waiter))
        if not self._armed:
            self._armed = True
            self.loop.call_later(ANSWER_SECONDS, self._run_out)

    def _run_out(self) -> None:
        waits, now = self._waits, self.loop.time()
        over: list[Waiter] = []
        while waits and (waits[0][0] <= now or waits[0][1].done()):
            over.append(waits.popleft()[1])
        self._armed = bool(waits)
        if waits:
            self.loop.call_later(waits[0][0] - now, self._run_out)
        # A turn later: after a long sleep of the machine an answer may be there in this one.
        self.loop.call_soon(wake, *over)


def _patience_of(loop: asyncio.AbstractEventLoop) -> Patience:
    """A thread runs one loop at a time; what is remembered of an earlier one is let go."""
    patience: Patience | None = getattr(_driver, "patience", None)
    if patience is None or patience.loop is not loop:
        patience = _driver.patience = Patience(loop)
    return patience


class Pending(Generic[T]):
    """One answer for one waiter. `patience` bounds the wait; running out of it leaves the pending alive."""

    __slots__ = ("_error", "_lock", "_mutex", "_result", "abandoned", "done", "loop", "patience", "waiter")

    def __init__(self, mutex: threading.Lock, patience: float) -> None:
        self._mutex = mutex
        self.patience = patience
        self.done = False
        self.abandoned = False
        self._result: T | None = None
        self._error: Exception | None = None
        self.loop: asyncio.AbstractEventLoop | None = None  # of the task that waits
        self.waiter: Waiter | None = None
        self._lock: threading.Lock | None = None

    def __await__(self) -> Generator[Any, Any, T]:
        if self.done:
            return self.result()
        loop = running_loop()
        if getattr(_driver, "loop", _NOBODY) is loop:  # as `driven()`
            yield self
            return self.result()
        waiter, timer = self._wait_on(loop or asyncio.get_running_loop())
        if waiter is not None:
            try:
                yield waiter
            except BaseException:
                self.abandon()
                raise
            finally:
                if timer is not None:
                    timer.cancel()
        return self.result()

    def _wait_on(self, loop: asyncio.AbstractEventLoop) -> tuple[Waiter | None, asyncio.TimerHandle | None]:
        """What is to be waited for, unless the answer has come, and a timer of its own, if it has one."""
        waiter = Waiter(loop)
        with self._mutex:
            if self.done:
                return None, None
            self.loop, self.waiter = loop, waiter
        self.on_loop(loop)
        if self.patience != ANSWER_SECONDS:
            return waiter, loop.call_later(self.patience, loop.call_soon, waiter.wake)
        _patience_of(loop).lend(waiter)
        return waiter, None

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
        return self.loop


def tell(results: Sequence[tuple[Pending[T], T | None, Exception | None]]) -> None:
    """Hand over answers, waking each event loop once. The caller holds the pendings' mutex."""
    loops: dict[asyncio.AbstractEventLoop, list[Waiter]] = {}
    for pending, result, error in results:
        loop = pending.resolve(result, error)
        if loop is not None and pending.waiter is not None:
            loops.setdefault(loop, []).append(pending.waiter)
    for loop, waiters in loops.items():
        _wake_on(loop, waiters)


def tell_one(pending: Pending[T], result: T) -> None:
    """As `tell`, for one answer alone."""
    loop = pending.resolve(result, None)
    if loop is not None and pending.waiter is not None:
        _wake_on(loop, (pending.waiter,))


def _wake_on(loop: asyncio.AbstractEventLoop, waiters: Iterable[Waiter]) -> None:
    # A loop that was closed with its callers hears of nothing; the answers are recorded in the store.
    with contextlib.suppress(RuntimeError):
        if running_loop() is loop:
            loop.call_soon(wake, *waiters)
        else:
            loop.call_soon_threadsafe(wake, *waiters)


def wake(*waiters: Waiter) -> None:
    """Runs on their own loop."""
    for number, waiter in enumerate(waiters, 1):
        try:
            waiter.wake()
        except BaseException:
            # Ctrl-C while a task was stepped goes on to the loop; the others are not to wait for ever.
            if number < len(waiters):
                waiter.get_loop().call_soon(wake, *waiters[number:])
            raise
