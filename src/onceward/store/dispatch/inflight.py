"""In-flight batches, and the interface of a store that can send a batch without waiting for its results.

See `store/dispatch/pipeline.py` for how they are used.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast

from onceward.core.claim import Write, WriteResult
from onceward.errors import OncewardError
from onceward.store.dispatch.queue import Batch, Queue

# The time that a loop has to complete its batch while others want the store, or have writes in the batch.
LOOP_GRACE_SECONDS = 0.05
# The time after which the I/O thread checks whether the loop of a batch still runs.
LOST_LOOP_SECONDS = 1.0


class SentBatch(Protocol):
    """A batch that was sent. One thread at a time uses it."""

    @property
    def must_block(self) -> bool:
        """True if `finish` has to wait for more than the results, so that it must not run on an event loop."""
        ...

    @property
    def received(self) -> bool:
        """True if all results have arrived without an error. `finish` then only decodes, and the store is free."""
        ...

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when results arrive."""
        ...

    def poll(self) -> bool:
        """Read what has arrived, without waiting. True if nothing more will arrive, because of an error or the end."""
        ...

    def finish(self) -> list[WriteResult]:
        """Return the results, waiting for those that have not arrived. Raises what `commit` raises."""
        ...

    def give_up(self) -> None:
        """Abandon the batch: its results must not be taken for those of another one."""
        ...


class EncodedBatch(Protocol):
    """Writes in the form in which they are sent, encoded before the store is free."""

    def add(self, writes: Sequence[Write]) -> None:
        """Encode more writes. Raises `BatchFailed` if they cannot be sent; then this object cannot be used any more."""
        ...

    def send(self) -> SentBatch | None:
        """Send the batch. Returns None, with nothing sent, if the store would first have to wait for something.

        Until the batch is received or finished, the store is not used for anything else.
        """
        ...


class BatchEncoder(Protocol):
    """A store that can send a batch without waiting for its results."""

    def encode_batch(self) -> EncodedBatch:
        """Return an empty batch."""
        ...


def encoder_of(store: object) -> BatchEncoder | None:
    """Return the encoder of a store, or None. Stores with the names of 0.1 (`pack`, `depart`, `grounded`) work too."""
    # Check the class: a wrapper that forwards unknown attributes does not implement this itself.
    if hasattr(type(store), "encode_batch"):
        return cast("BatchEncoder", store)
    return _EarlierEncoder(store) if hasattr(type(store), "pack") else None


class _EarlierEncoder:
    def __init__(self, store: Any) -> None:
        self._store = store

    def encode_batch(self) -> EncodedBatch:
        return _EarlierEncodedBatch(self._store.pack())


class _EarlierEncodedBatch:
    def __init__(self, packed: Any) -> None:
        self._packed = packed
        self.add: Callable[[Sequence[Write]], None] = packed.add

    def send(self) -> SentBatch | None:
        earlier = self._packed.depart()
        return None if earlier is None else _EarlierSentBatch(earlier)


class _EarlierSentBatch:
    def __init__(self, earlier: Any) -> None:
        self._earlier = earlier
        self.fileno: Callable[[], int] = earlier.fileno
        self.poll: Callable[[], bool] = earlier.poll
        self.finish: Callable[[], list[WriteResult]] = earlier.finish
        self.give_up: Callable[[], None] = earlier.give_up

    @property
    def must_block(self) -> bool:
        return bool(self._earlier.grounded)

    @property
    def received(self) -> bool:
        return bool(self._earlier.received)


class BatcherCallbacks(Protocol):
    """The methods of the batcher that the pipeline calls."""

    mutex: threading.Lock
    queue: Queue  # guarded by the mutex

    def complete(self, batch: Batch, commit: Callable[[], list[WriteResult]], split: Callable[[Batch], None]) -> None:
        """Get the results of a batch and resolve its writes. Pass a batch that fails because of its data to `split`."""
        ...

    def halve(self, batch: Batch) -> None:
        """Commit a batch in two halves, waiting for them."""
        ...

    def fail(self, batch: Batch, error: OncewardError) -> None:
        """Resolve each write of the batch that has no result yet with this error."""
        ...

    def send_queued(self, loop: asyncio.AbstractEventLoop) -> None:
        """Send the queued writes, from this loop or by the I/O thread."""
        ...

    def wake_thread(self) -> None:
        """Wake the I/O thread at once."""
        ...

    def wake_thread_at(self, deadline: float) -> None:
        """Wake the I/O thread at this time, to check on the in-flight batch (`Pipeline.check_at`)."""
        ...


class InflightBatch:
    """A batch that was sent, its queued writes, and the loop that completes it."""

    __slots__ = ("_reader_fd", "batch", "batcher", "lock", "loop", "over", "overdue_at", "sent_at", "sent_batch")

    def __init__(
        self,
        sent_batch: SentBatch,
        batch: Batch,
        loop: asyncio.AbstractEventLoop,
        batcher: BatcherCallbacks,
    ) -> None:
        self._reader_fd = -1
        self.sent_batch = sent_batch
        self.batch = batch
        self.loop = loop
        self.batcher = batcher
        self.sent_at = time.monotonic()
        # A loop that does not complete the batch is detected, and sooner if the batch has writes of other callers.
        is_one_loop = all(queued.loop is loop for queued in batch)
        self.overdue_at = self.sent_at + (LOST_LOOP_SECONDS if is_one_loop else LOOP_GRACE_SECONDS)
        self.lock = threading.Lock()  # held briefly, while results are read and while `over` is decided
        self.over = False  # set by the one thread that ends the batch

    def add_reader(self, on_readable: Callable[[InflightBatch], None]) -> None:
        """Have the loop call back when results arrive. If it cannot, the I/O thread completes the batch."""
        if self.sent_batch.must_block:
            return
        try:
            # Use a duplicate, because the store may close its own descriptor while the loop still watches it.
            self._reader_fd = os.dup(self.sent_batch.fileno())
            self.loop.add_reader(self._reader_fd, on_readable, self)
        except Exception:  # noqa: BLE001
            self._close_reader_fd()

    @property
    def needs_thread(self) -> bool:
        """True if only a thread can complete the batch."""
        return not self.over and (self.sent_batch.must_block or self._reader_fd < 0 or self.loop.is_closed())

    def remove_reader(self) -> None:
        """Remove the reader callback. Must run on the loop's own thread.

        If it is interrupted, it runs again at the next event, or the batch closes the descriptor when it is freed. The
        descriptor must not be reused by others while the loop has a reader on it.
        """
        if self._reader_fd >= 0:
            self.loop.remove_reader(self._reader_fd)
            self._close_reader_fd()

    def remove_reader_threadsafe(self) -> None:
        try:
            self.loop.call_soon_threadsafe(self.remove_reader)
        except RuntimeError:  # the loop is closed, and its selector too
            self._close_reader_fd()

    def _close_reader_fd(self) -> None:
        reader_fd, self._reader_fd = self._reader_fd, -1
        if reader_fd >= 0:
            os.close(reader_fd)

    def __del__(self) -> None:
        if getattr(self, "_reader_fd", -1) >= 0:  # the loop was closed before it removed the reader
            self._close_reader_fd()
