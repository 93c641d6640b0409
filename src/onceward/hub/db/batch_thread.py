"""Thread that does the work of many callers in batches: whatever is queued while one batch runs is the next one.

A caller is a task of an event loop, or another thread. No batch waits for a timer, and a batch wakes each event loop
once. A caller that is cancelled takes its item back if it is still queued; if the item runs, the caller waits for its
end, so that no work continues behind its back.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import sqlalchemy

from onceward.errors import StoreClosed, StoreUnavailable

T = TypeVar("T")

# An idle thread ends after this time, so that a database that was never closed leaves no thread.
IDLE_SECONDS = 10.0
# An item that has waited for longer than this is refused: its client has probably given up.
QUEUED_SECONDS = 30.0


class QueuedItem(Generic[T]):
    """The work of one caller, and its result once `done` is set."""

    __slots__ = ("_ticket", "done", "error", "loop", "queued_at", "result", "wakeup", "work")

    def __init__(self, work: Any) -> None:
        self.work = work
        self.done = False
        self.result: T | None = None
        self.error: BaseException | None = None
        self.queued_at = time.monotonic()
        self.loop: asyncio.AbstractEventLoop | None = None
        self.wakeup: Any = None
        self._ticket = [True]

    def take(self) -> bool:
        """Take the item from the queue: the thread does to run it, a cancelled caller to withdraw it. One succeeds."""
        try:
            return self._ticket.pop()
        except IndexError:
            return False

    def succeed(self, result: T) -> None:
        self.result, self.done = result, True

    def fail(self, error: BaseException) -> None:
        self.error, self.done = error, True

    def outcome(self) -> T:
        if self.error is not None:
            raise self.error
        return self.result  # type: ignore[return-value]  # done and no error: a T was set


class BatchThread:
    """Queue of items and the thread that runs them. `run` gets a batch and must finish each of its items.

    Args:
        name: The name of the thread.
        run: Does the work of a batch, in the thread. An exception fails all items that it has not finished.
        batch_max: The largest number of items in a batch.
        ended: Called in the thread before it ends, to close what `run` has opened.
    """

    def __init__(
        self,
        name: str,
        run: Callable[[Sequence[QueuedItem[Any]]], None],
        batch_max: int,
        ended: Callable[[], None] = lambda: None,
    ) -> None:
        self._name = name
        self._run = run
        self._batch_max = batch_max
        self._ended = ended
        self._closed = False
        self._reset()

    def _reset(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()  # guards starting, ending and closing
        self._queue: queue.SimpleQueue[QueuedItem[Any] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    async def submit(self, work: Any) -> Any:
        """Queue work for the next batch and return its result, after the batch has ended."""
        item: QueuedItem[Any] = QueuedItem(work)
        loop = item.loop = asyncio.get_running_loop()
        item.wakeup = loop.create_future()
        self._put(item)
        try:
            await item.wakeup
        except asyncio.CancelledError:
            if not item.take():
                await _ended_despite_cancelling(item, loop)
            raise
        return item.outcome()

    def submit_blocking(self, work: Any) -> Any:
        """Queue work as `submit` does, from a thread without an event loop."""
        item: QueuedItem[Any] = QueuedItem(work)
        item.wakeup = threading.Lock()
        item.wakeup.acquire()
        self._put(item)
        try:
            item.wakeup.acquire()
        except BaseException:
            if not item.take():
                item.wakeup.acquire()
            raise
        return item.outcome()

    def post(self, work: Any, failed: Callable[[BaseException], object]) -> None:
        """Queue work for the next batch without waiting for it. `failed` is called in the thread if it fails."""
        item: QueuedItem[Any] = QueuedItem(work)
        item.wakeup = _FailureCallback(item, failed)
        self._put(item)

    def _put(self, item: QueuedItem[Any]) -> None:
        if self._process != os.getpid():
            # After a fork: the parent's thread does not run here, and the queued items are the parent's.
            self._reset()
        with self._lock:
            if self._closed:
                raise StoreClosed("the database is closed")
            self._queue.put(item)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Refuse new work, finish all that is queued, and end the thread."""
        with self._lock:
            self._closed = True
            thread = self._thread if self._process == os.getpid() else None
        if thread is not None:
            self._queue.put(None)
            thread.join()

    def _work(self) -> None:
        while True:
            batch = self._next_batch()
            if batch:
                self._run_batch(batch)
                continue
            with self._lock:
                # An item may have come while this thread was about to end.
                if self._queue.empty() and (batch is None or self._closed):
                    # Before another thread can start, which would use the same connection.
                    self._ended()
                    self._thread = None
                    return

    def _next_batch(self) -> list[QueuedItem[Any]] | None:
        """Wait for an item, and return it with all others that are queued. None if none came for a while."""
        try:
            item = self._queue.get(timeout=IDLE_SECONDS)
        except queue.Empty:
            return None
        batch: list[QueuedItem[Any]] = []
        with contextlib.suppress(queue.Empty):
            while True:
                if item is not None and item.take():
                    batch.append(item)
                if len(batch) == self._batch_max:
                    break
                item = self._queue.get_nowait()
        return batch

    def _run_batch(self, batch: list[QueuedItem[Any]]) -> None:
        too_old = time.monotonic() - QUEUED_SECONDS
        fresh = []
        for item in batch:
            if item.queued_at < too_old:
                item.fail(StoreUnavailable("the database is unavailable: timed out waiting for other writers"))
            else:
                fresh.append(item)
        try:
            if fresh:
                self._run(fresh)
        except BaseException as error:  # noqa: BLE001  # raised again in each caller
            for item in fresh:
                if not item.done:
                    item.fail(copied(error))
        _wake(batch)


class _FailureCallback:
    """In place of the lock on which a waiting thread sleeps."""

    def __init__(self, item: QueuedItem[Any], failed: Callable[[BaseException], object]) -> None:
        self._item = item
        self._failed = failed

    def release(self) -> None:
        if self._item.error is not None:
            self._failed(self._item.error)


async def _ended_despite_cancelling(item: QueuedItem[Any], loop: asyncio.AbstractEventLoop) -> None:
    """Wait for the end of an item that runs, however often the caller is cancelled."""
    while not item.done:
        item.wakeup = loop.create_future()
        try:
            await item.wakeup
        except asyncio.CancelledError:
            continue


def _wake(batch: Sequence[QueuedItem[Any]]) -> None:
    """Wake the callers of a batch: threads one by one, and the tasks of each event loop with one call."""
    loops: dict[asyncio.AbstractEventLoop, list[QueuedItem[Any]]] = {}
    for item in batch:
        if item.loop is None:
            item.wakeup.release()
        else:
            loops.setdefault(item.loop, []).append(item)
    for loop, items in loops.items():
        try:
            loop.call_soon_threadsafe(_wake_tasks, items)
        except RuntimeError:  # the loop is closed, and its tasks are gone
            continue


def _wake_tasks(items: Sequence[QueuedItem[Any]]) -> None:
    for item in items:
        if not item.wakeup.done():
            item.wakeup.set_result(None)


def copied(error: BaseException) -> BaseException:
    """Copy an error for one of several callers: a shared exception would collect the tracebacks of all of them."""
    try:
        copy = type(error)(*error.args)
    except Exception:  # noqa: BLE001  # its class has other parameters
        return StoreUnavailable(f"a batch failed: {error!r}")
    copy.__cause__ = error
    return copy


class KeptConnection:
    """Connection of one batch thread: it stays open, takes no place in the pool, and is not shared with a forked child.

    `prepare` is called with each new connection, and returns the one to use.
    """

    def __init__(
        self, engine: sqlalchemy.Engine, prepare: Callable[[sqlalchemy.Connection], sqlalchemy.Connection]
    ) -> None:
        self._engine = engine
        self._prepare = prepare
        self._process = os.getpid()
        self._connection: sqlalchemy.Connection | None = None

    @property
    def is_open(self) -> bool:
        return self._connection is not None and self._process == os.getpid()

    def get(self) -> sqlalchemy.Connection:
        """Return the connection, and open it if needed."""
        if self._process != os.getpid():
            # The parent's connection must be neither used nor closed here.
            _inherited.append(self._connection)
            self._connection, self._process = None, os.getpid()
        if self._connection is None:
            connection = self._prepare(self._engine.connect())
            connection.detach()
            self._connection = connection
        return self._connection

    def close(self) -> None:
        if self.is_open:
            connection, self._connection = self._connection, None
            with contextlib.suppress(sqlalchemy.exc.SQLAlchemyError):
                connection.close()  # type: ignore[union-attr]  # it is open


_inherited: list[sqlalchemy.Connection | None] = []
