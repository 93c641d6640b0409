"""Futures for results of the store. The same object can be awaited on an event loop or waited for by a thread.

The ledger's coroutines await nothing but these futures and the caller's own effect. On an event loop, the task waits
for a `Waiter`. Where a *driver* steps the coroutine instead (`blocking.py`, the simulator), the await yields the future
itself to the driver, which waits for it in its own way.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Iterable, Sequence
from typing import Any, Generic, TypeVar, cast

from onceward.errors import StoreUnavailable

T = TypeVar("T")

# How long a caller waits for one result before it gets `StoreUnavailable`.
RESULT_SECONDS = 5.0

_driver = threading.local()


class driving:  # noqa: N801  # used as a function
    """Context manager of a driver: coroutines stepped on this thread yield their futures to it."""

    __slots__ = ("_outer",)

    def __enter__(self) -> None:
        self._outer = getattr(_driver, "loop", _NO_DRIVER)
        _driver.loop = running_loop()

    def __exit__(self, *raised: object) -> None:
        _driver.loop = self._outer


def driven() -> bool:
    """Return whether a driver, and not an event loop, steps the current coroutine.

    Inside a driver, an effect may start its own event loop. Coroutines on that loop are not stepped by the driver.
    """
    return getattr(_driver, "loop", _NO_DRIVER) is running_loop()


# Like `asyncio.get_running_loop`, but returns None if no loop is running.
running_loop: Callable[[], asyncio.AbstractEventLoop | None] = asyncio._get_running_loop  # noqa: SLF001  # asyncio exports it for event loops


_NO_DRIVER = object()


class Waiter:
    """The object that a task waits for, in place of an asyncio future.

    `wake` steps the task at once. An asyncio future would schedule the step for the next iteration of the loop, and all
    requests that run in between would push the task's data out of the CPU caches. One task waits for a waiter, once. A
    waiter has only the methods of a future that asyncio's tasks call.
    """

    __slots__ = ("_asyncio_future_blocking", "_cancelled", "_context", "_loop", "_step")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._asyncio_future_blocking = True
        self._loop = loop
        self._step: Callable[[Waiter], object] | None = None
        self._context: contextvars.Context | None = None
        self._cancelled: tuple[object, ...] | None = None

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._loop

    def add_done_callback(
        self, step: Callable[[Waiter], object], *, context: contextvars.Context | None = None
    ) -> None:
        self._step, self._context = step, context

    def cancel(self, msg: object = None) -> bool:
        if self._step is None:
            return False
        # By its message, anyio recognises the cancellation of its own scopes.
        self._cancelled = () if msg is None else (msg,)
        self._loop.call_soon(self.wake)
        return True

    def result(self) -> None:
        """Raise `CancelledError` in the task that is stepped, if the wait was cancelled."""
        if self._cancelled is not None:
            raise asyncio.CancelledError(*self._cancelled)

    def done(self) -> bool:
        return self._step is None

    def wake(self) -> None:
        """Step the waiting task, unless that was already done."""
        step, context = self._step, self._context
        if step is not None and context is not None:
            self._step = self._context = None
            context.run(step, self)


class TimeoutQueue:
    """Timeouts for the waiters of one event loop, with a single timer.

    Nearly every result arrives long before its timeout. To set and cancel a timer for each wait would cost more than
    the wait itself.
    """

    __slots__ = ("_armed", "_queue", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._queue: deque[tuple[float, Waiter]] = deque()
        self._armed = False

    def add(self, waiter: Waiter) -> None:
        """Wake the waiter when its time is up, unless it was woken before."""
        waits = self._queue
        while waits and waits[0][1].done():
            waits.popleft()
        waits.append((self.loop.time() + RESULT_SECONDS, waiter))
        if not self._armed:
            self._armed = True
            self.loop.call_later(RESULT_SECONDS, self._expire)

    def _expire(self) -> None:
        waits, now = self._queue, self.loop.time()
        over: list[Waiter] = []
        while waits and (waits[0][0] <= now or waits[0][1].done()):
            over.append(waits.popleft()[1])
        self._armed = bool(waits)
        if waits:
            self.loop.call_later(waits[0][0] - now, self._expire)
        # Wake them in the next iteration: after a suspend of the computer, results may be ready in this one.
        self.loop.call_soon(wake, *over)


def _timeouts_of(loop: asyncio.AbstractEventLoop) -> TimeoutQueue:
    """Return the timeouts of the loop. A thread runs one loop at a time, so those of an earlier loop are dropped."""
    timeouts: TimeoutQueue | None = getattr(_driver, "timeouts", None)
    if timeouts is None or timeouts.loop is not loop:
        timeouts = _driver.timeouts = TimeoutQueue(loop)
    return timeouts


class StoreFuture(Generic[T]):
    """A future with one waiter. `timeout` limits the wait; after that the future may still be resolved."""

    __slots__ = ("_error", "_lock", "_mutex", "_result", "abandoned", "done", "loop", "timeout", "waiter")

    def __init__(self, mutex: threading.Lock, timeout: float) -> None:
        self._mutex = mutex
        self.timeout = timeout
        self.done = False
        self.abandoned = False
        self._result: T | None = None
        self._error: Exception | None = None
        self.loop: asyncio.AbstractEventLoop | None = None  # the loop of the waiting task
        self.waiter: Waiter | None = None
        self._lock: threading.Lock | None = None

    def __await__(self) -> Generator[Any, Any, T]:
        if self.done:
            return self.result()
        loop = running_loop()
        if getattr(_driver, "loop", _NO_DRIVER) is loop:  # `driven()`, inlined
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
        """Return the waiter, or None if the future is done, and its timer if the timeout is not the usual one."""
        waiter = Waiter(loop)
        with self._mutex:
            if self.done:
                return None, None
            self.loop, self.waiter = loop, waiter
        self.on_loop(loop)
        if self.timeout != RESULT_SECONDS:
            return waiter, loop.call_later(self.timeout, loop.call_soon, waiter.wake)
        _timeouts_of(loop).add(waiter)
        return waiter, None

    def block(self) -> None:
        """Wait on this thread, at most for `timeout` seconds."""
        try:
            self.on_thread()
            if self.done:
                return
            lock = threading.Lock()
            lock.acquire()
            with self._mutex:
                if self.done:
                    return  # type: ignore[unreachable]  # another thread may have resolved it meanwhile
                self._lock = lock
            lock.acquire(timeout=self.timeout)
        except BaseException:
            self.abandon()
            raise

    def on_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        """Hook: called when a task of this loop begins to wait."""

    def on_thread(self) -> None:
        """Hook: called when a thread begins to wait. It may resolve the future itself."""

    def abandon(self) -> None:
        """Record that nothing waits for the result any more. The queue withdraws the write if that is safe."""
        with self._mutex:
            self.abandoned = True

    @property
    def failed(self) -> bool:
        return self._error is not None

    def result(self) -> T:
        if self._error is not None:
            raise self._error
        if not self.done:
            raise StoreUnavailable(f"the store did not respond within {self.timeout:g} s")
        return self._result  # type: ignore[return-value]  # done without an error, so it is a T

    def resolve(self, result: T | None, error: Exception | None) -> asyncio.AbstractEventLoop | None:
        """Set the result. The caller holds the mutex, and must `wake` the waiter on the returned loop, if any."""
        if self.done:
            return None
        self._result, self._error = result, error
        self.done = True  # set last, because a thread may read it without the mutex
        if self._lock is not None:
            self._lock.release()
        return self.loop


def resolve_all(results: Sequence[tuple[StoreFuture[T], T | None, Exception | None]]) -> None:
    """Set the results and wake each event loop once. The caller holds the mutex of the futures."""
    loops: dict[asyncio.AbstractEventLoop, list[Waiter]] = {}
    for future, result, error in results:
        loop = future.resolve(result, error)
        if loop is not None and future.waiter is not None:
            loops.setdefault(loop, []).append(future.waiter)
    for loop, waiters in loops.items():
        _wake_on(loop, waiters)


def resolve_one(future: StoreFuture[T], result: T) -> None:
    """Set one result, like `resolve_all`."""
    loop = future.resolve(result, None)
    if loop is not None and future.waiter is not None:
        _wake_on(loop, (future.waiter,))


def _wake_on(loop: asyncio.AbstractEventLoop, waiters: Iterable[Waiter]) -> None:
    # A closed loop raises RuntimeError. Its callers are gone, and the results are recorded in the store.
    with contextlib.suppress(RuntimeError):
        if running_loop() is loop:
            loop.call_soon(wake, *waiters)
        else:
            loop.call_soon_threadsafe(wake, *waiters)


def wake(*waiters: Waiter) -> None:
    """Wake the waiters. Runs on their own loop."""
    for number, waiter in enumerate(waiters, 1):
        try:
            waiter.wake()
        except BaseException:
            # Ctrl-C while a task was stepped is raised to the loop. The other waiters must still be woken.
            if number < len(waiters):
                waiter.get_loop().call_soon(wake, *waiters[number:])
            raise


def wait(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine of the ledger to its end on this thread."""
    error: BaseException | None = None
    with driving():
        while True:
            try:
                future = coroutine.send(None) if error is None else coroutine.throw(error)
            except StopIteration as stop:
                return cast("T", stop.value)
            error = None
            try:
                cast("StoreFuture[object]", future).block()
            except BaseException as interrupt:  # noqa: BLE001  # handed to the coroutine, which decides
                error = interrupt
