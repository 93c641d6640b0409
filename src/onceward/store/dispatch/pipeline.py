"""The pipeline: an event loop sends batches itself and continues with other work until the results arrive.

THEORY OF OPERATION

Why. The I/O thread needs the interpreter's lock (GIL) to encode a batch and to decode its results, while an event loop
needs it to compute. Server and callers would then work in turns. A store that can encode and send a batch without
waiting (`BatchEncoder` in `inflight.py`) lets the loop send it in the middle of its work, and the loop's selector
reports when results arrive. While the server works for one half of the callers, the other half computes.

    event loop  | queue A  | send A  | queue B  | encode B  | receive A  | send B  | complete A  | queue C  |
    server                           |------ commit A ------|                      |------- commit B -------|
    store lock             |------------------ batch A ------------------|------------ batch B -------------|

The queue belongs to the batcher (`batcher.py`), and its writes come from all loops and threads of the process. A batch
takes writes of all of them, no matter who sends it. A write stays in the queue until a batch that is being sent takes
it out, so nothing is lost if a batch that was encoded ahead is never sent.

The store lock. One user at a time has the store, and holds `Pipeline.lock`:

    I/O thread       in `exclusive_store`, for everything that must wait: connecting, sending again, reads, purges,
                     batches that failed because of their data, and all batches of a store without an encoder. While it
                     waits for the lock, `_threads_waiting` keeps the loops from sending.
    calling thread   in `Batcher.help`, for one batch that it commits while it waits for its own result. It takes the
                     lock only if it is free.
    in-flight batch  from `_send` to its completion. No thread holds the lock during that time: the batch does. Its loop
                     releases it, the next batch inherits it, or a thread that completes the batch takes it over.

Sending. When a task begins to wait for a write, `Batcher.nudge` schedules `send` for the end of the loop's iteration,
so that the writes of all its tasks share a batch. Early send: if many writes are queued before the end (half of the
last batch, at least `EARLY_MIN`) and the store is free, they are sent at once, so that the server starts while the
loop still runs tasks. If the store is not free and its in-flight batch will soon be completed by the same loop, `send`
encodes ahead. Otherwise it wakes the I/O thread, unless a thread already waits for the store.

Encode ahead. While a batch is in flight, its loop encodes the next one, so that the server does not wait for that. The
next batch has at most about half of all writes that are queued or in flight, so that server and callers each have a
part to work on. If it shares a key with the in-flight batch, nothing is encoded ahead, because that write depends on
the results. Writes that are queued later are added to the encoded batch while it is a prefix of the next batch;
otherwise the next batch is encoded again.

Complete. The loop's selector calls `_on_readable`. When all results were received, the connection is free, although
the results are not yet decoded. So the next batch is sent first, and then `Batcher.complete` decodes the results and
resolves the futures. A batch that failed because of its data goes back to the queue, and `_thread_first` leaves it to
the I/O thread, which halves it. A batch that could not be sent without waiting goes back in the same way.

Hand over. The I/O thread prefers that loops send. When it goes to rest and finds queued writes, it asks the loop of the
first one to send them (`hand_over`) and sleeps for `LOOP_GRACE_SECONDS`. If they are still queued then, it commits
them. In the same way it checks on the in-flight batch (`check_at`): a loop that is blocked or was closed must not keep
others from the store. The thread completes a batch that is overdue: after `LOOP_GRACE_SECONDS` if the thread wants the
store or the batch has writes of others, and after `LOST_LOOP_SECONDS` otherwise. Loop and thread may try to complete a
batch at the same time. The first one sets `InflightBatch.over` under `InflightBatch.lock`, and the other does nothing.

Interrupts. Ctrl-C raises an exception on the main thread between any two steps, and a loop usually runs there. The
interrupted sender fails the writes of its batch with `StoreUnavailable`, gives up the batch (so that its results are
never taken for those of another one), releases the lock, and raises the interrupt again. The callers repeat their
writes under the same ids, so nothing is applied twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple, cast

from onceward.errors import OncewardError, StoreUnavailable
from onceward.store import BatchFailed, Store
from onceward.store.dispatch.inflight import (
    LOOP_GRACE_SECONDS,
    BatchEncoder,
    BatcherCallbacks,
    EncodedBatch,
    InflightBatch,
    SentBatch,
    encoder_of,
)
from onceward.store.dispatch.queue import Batch

# Fewer writes are not worth a separate batch in the middle of a loop's iteration.
EARLY_MIN = 8


class EncodedAhead(NamedTuple):
    """The next batch, encoded while the previous one is in flight."""

    batch: Batch
    encoded: EncodedBatch
    follows: InflightBatch
    queued: int  # the length of the queue when it was encoded


class Pipeline:
    """The use of one store: by a thread that has it exclusively, or by one in-flight batch."""

    def __init__(self, store: Store) -> None:
        self._encoder = encoder_of(store)
        self.lock = threading.Lock()  # held while anyone uses the store; taken before the batcher's mutex
        self._in_flight: InflightBatch | None = None
        self._threads_waiting = 0  # threads that want or have the store; no loop sends before them
        self._thread_first = False  # whether the queued writes need the I/O thread
        self._handed_over_at = -math.inf
        self._early = EARLY_MIN
        self._ahead: EncodedAhead | None = None  # guarded by the batcher's mutex
        self._encode_at = 0  # the length of the queue at which more is encoded ahead

    def is_early(self, queued: int) -> bool:
        """Return whether this many writes are worth sending before the end of the loop's iteration."""
        return queued >= self._early and self._encoder is not None and not self._thread_first and not self.lock.locked()

    def send(self, batcher: BatcherCallbacks, loop: asyncio.AbstractEventLoop) -> None:
        """Send the queued writes from this loop, or have the I/O thread do it."""
        if self._encoder is None or self._thread_first:
            batcher.wake_thread()
        elif self._threads_waiting:
            return  # a thread that has the store, or waits for it, checks the queue afterwards
        elif self.lock.locked():
            in_flight = self._completing_soon_on(loop)
            if in_flight is None:
                batcher.wake_thread()
            elif len(batcher.queue) >= self._encode_at:
                self._encode_ahead(batcher, in_flight)
        else:
            self._schedule_check(batcher, self._send(batcher, loop))

    def _completing_soon_on(self, loop: asyncio.AbstractEventLoop) -> InflightBatch | None:
        """Return the in-flight batch if this loop will complete it soon; the queued writes then follow it."""
        in_flight = self._in_flight
        if in_flight is None or in_flight.loop is not loop or in_flight.needs_thread:
            return None
        return in_flight if time.monotonic() < in_flight.sent_at + LOOP_GRACE_SECONDS else None

    def _encode_ahead(self, batcher: BatcherCallbacks, in_flight: InflightBatch) -> None:
        """Encode the next batch while the store works, so that it does not pause between two batches.

        The writes stay in the queue, and any other sender may take them. No write is encoded that depends on results
        of the in-flight batch.
        """
        with batcher.mutex:
            # At most about half of all writes that are queued or in flight: one part for the server, one for the loop.
            batch = batcher.queue.first(max(EARLY_MIN, (len(batcher.queue) + len(in_flight.batch) + 1) // 2))
            queued = len(batcher.queue)
            # Searching the queue in every iteration for a few added writes would cost more than sending it.
            self._encode_at = queued + max(EARLY_MIN, queued // 4)
            ahead, self._ahead = self._ahead, None
        if batch and _are_disjoint(batch, in_flight.batch):
            with contextlib.suppress(Exception):  # it will fail again when it is sent, and is handled there
                self._ahead = EncodedAhead(batch, self._encode(ahead, batch), in_flight, queued)

    def _encode(self, ahead: EncodedAhead | None, batch: Batch) -> EncodedBatch:
        """Encode a batch, starting from the batch that was encoded ahead if it is a prefix."""
        if ahead is None or batch[: len(ahead.batch)] != ahead.batch:
            done, encoded = 0, cast("BatchEncoder", self._encoder).encode_batch()
        else:
            done, encoded = len(ahead.batch), ahead.encoded
        encoded.add([queued.write for queued in batch[done:]])
        return encoded

    def check_at(self, *, queued: bool) -> float:
        """Return when the I/O thread must check that loops complete their batches and send the queued writes."""
        in_flight = self._in_flight
        if in_flight is not None:
            return in_flight.overdue_at
        return self._handed_over_at + LOOP_GRACE_SECONDS if queued else math.inf

    def _schedule_check(self, batcher: BatcherCallbacks, in_flight: InflightBatch | None) -> None:
        if in_flight is None or in_flight.needs_thread:
            batcher.wake_thread()
        else:
            batcher.wake_thread_at(in_flight.overdue_at)

    def _send(
        self, batcher: BatcherCallbacks, loop: asyncio.AbstractEventLoop, before: InflightBatch | None = None
    ) -> InflightBatch | None:
        """Send the next batch. It holds the store lock from here on.

        The batch takes the lock if it is free, or inherits it from the batch `before`. If nothing is sent, the lock is
        released, or stays with `before`.
        """
        batch: Batch = []
        sent_batch: SentBatch | None = None
        in_flight: InflightBatch | None = None
        ahead: EncodedAhead | None = None
        is_ours = False
        try:
            is_ours = before is not None or self.lock.acquire(blocking=False)
            with batcher.mutex:
                if is_ours and not self._threads_waiting:
                    ahead, self._ahead = self._ahead, None
                    if before is None:
                        batch = batcher.queue.gather()
                    elif ahead is not None and batcher.queue.take(ahead.batch):
                        batch = ahead.batch
            if batch and self._encoder is not None:
                sent_batch = self._encode(ahead, batch).send()
            if sent_batch is not None:
                in_flight = InflightBatch(sent_batch, batch, loop, batcher)
                in_flight.add_reader(self._on_readable)
                self._in_flight, self._encode_at = in_flight, 1
        except BatchFailed:
            sent_batch = None  # the I/O thread halves the batch to find the write that causes it
        except BaseException as error:
            if in_flight is not None:
                in_flight.over = True
                in_flight.remove_reader()
                in_flight = None
            if sent_batch is not None:
                sent_batch.give_up()
            batcher.fail(batch, _as_store_error(error))
            batch = []
            if not isinstance(error, Exception):  # an interrupt is raised to the loop
                raise
        finally:
            if is_ours and in_flight is None:
                self._thread_first = bool(batch)
                with batcher.mutex:
                    batcher.queue.restore(batch)
                if before is None:
                    self.lock.release()
        return in_flight

    def _on_readable(self, in_flight: InflightBatch) -> None:
        """Reader callback, on the loop: read what has arrived, and complete the batch if that is all."""
        batcher, is_ours = in_flight.batcher, False
        try:
            with in_flight.lock:
                if not in_flight.over:
                    if not in_flight.sent_batch.poll():
                        return
                    if not in_flight.sent_batch.must_block:
                        is_ours = in_flight.over = True
            if is_ours:
                self._send_next(in_flight)
                batcher.complete(
                    in_flight.batch, in_flight.sent_batch.finish, functools.partial(self._split_later, batcher)
                )
            else:
                in_flight.remove_reader()
                batcher.wake_thread()
        except BaseException as error:
            with in_flight.lock:
                is_ours = is_ours or not in_flight.over
                in_flight.over = True
            if is_ours:
                self._fail_batch(in_flight, error)
            if not isinstance(error, Exception):
                raise
        finally:
            if is_ours and self._in_flight is in_flight:  # otherwise the next batch has inherited the lock
                self._in_flight = None
                self.lock.release()
        if is_ours:
            self._discard_ahead_of(in_flight)
            in_flight.remove_reader()
            self._early = max(EARLY_MIN, len(in_flight.batch) // 2)
            batcher.send_queued(in_flight.loop)

    def _send_next(self, in_flight: InflightBatch) -> None:
        """Send the batch that follows this one, before its results are decoded."""
        batcher = in_flight.batcher
        if not in_flight.sent_batch.received or self._thread_first:
            return
        ahead = self._ahead
        if ahead is None or ahead.follows is not in_flight or ahead.queued != len(batcher.queue):
            self._encode_ahead(batcher, in_flight)
        if self._ahead is not None:
            following = self._send(batcher, in_flight.loop, in_flight)
            if following is not None:
                self._schedule_check(batcher, following)

    def _discard_ahead_of(self, in_flight: InflightBatch) -> None:
        """Drop the batch encoded ahead if it was not sent; its writes are encoded again later."""
        if self._ahead is not None and self._ahead.follows is in_flight:
            self._ahead = None

    def _split_later(self, batcher: BatcherCallbacks, batch: Batch) -> None:
        """Put a batch back that failed because of its data; the I/O thread will halve it."""
        self._thread_first = True
        with batcher.mutex:
            batcher.queue.restore(batch)

    def _fail_batch(self, in_flight: InflightBatch, error: BaseException) -> None:
        if not in_flight.sent_batch.received:
            in_flight.sent_batch.give_up()
        in_flight.batcher.fail(in_flight.batch, _as_store_error(error))

    @contextmanager
    def exclusive_store(self, batcher: BatcherCallbacks) -> Iterator[None]:
        """Wait on a thread until it has the store. An in-flight batch is completed first, by its loop or from here."""
        with batcher.mutex:
            self._threads_waiting += 1
        is_ours = False
        try:
            while not is_ours:
                is_ours = self._acquire()
            self._thread_first = False
            yield
        finally:
            with batcher.mutex:
                self._threads_waiting -= 1
            if is_ours:
                self.lock.release()

    def hand_over(self, batcher: BatcherCallbacks, loop: asyncio.AbstractEventLoop | None) -> bool:
        """Ask this loop to send the queued writes; return false if it cannot. The thread checks soon whether it did.

        The caller holds the mutex, but not the store lock.
        """
        if self._encoder is None or self._thread_first or loop is None:
            return False
        try:
            loop.call_soon_threadsafe(batcher.send_queued, loop)
        except RuntimeError:  # the loop is closed
            return False
        self._handed_over_at = time.monotonic()
        return True

    def _acquire(self) -> bool:
        in_flight = self._in_flight
        if in_flight is None or not in_flight.needs_thread:
            if self.lock.acquire(timeout=LOOP_GRACE_SECONDS):
                return True
            in_flight = self._in_flight
        return in_flight is not None and self._complete_on_thread(in_flight)

    def _complete_on_thread(self, in_flight: InflightBatch) -> bool:
        """Complete an in-flight batch on this thread, which then has the store lock. False if its loop came first."""
        is_ours = False
        try:
            with in_flight.lock:
                if in_flight.over:
                    return False
                is_ours = in_flight.over = True
            self._discard_ahead_of(in_flight)
            in_flight.remove_reader_threadsafe()
            in_flight.batcher.complete(in_flight.batch, in_flight.sent_batch.finish, in_flight.batcher.halve)
            self._in_flight = None
        except BaseException as error:
            if is_ours:
                self._fail_batch(in_flight, error)
                self._in_flight = None
                self.lock.release()
            raise
        return True


def _are_disjoint(batch: Batch, other: Batch) -> bool:
    keys = {(queued.write.scope, queued.write.key) for queued in batch}
    return keys.isdisjoint((queued.write.scope, queued.write.key) for queued in other)


def _as_store_error(error: BaseException) -> OncewardError:
    if isinstance(error, OncewardError):
        return error
    if isinstance(error, Exception):
        return StoreUnavailable(f"the store failed unexpectedly: {error!r}")
    return StoreUnavailable("the commit was interrupted")
