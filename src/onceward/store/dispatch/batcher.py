"""The batcher: all writes of the process, from any event loop or thread, go to the store in shared batches.

THEORY OF OPERATION

A caller queues a write and waits for its future. While one batch is being committed, the writes of all callers collect
in the queue; the next batch takes them together. A batch never waits for a timer: it starts as soon as the store is
free. Three parties can start it, and whichever has the store lock does:

    I/O thread       `_work`. One daemon thread for each batcher, started on demand and ended when idle. It also runs
                     reads and other calls, renews claims, polls watched keys and purges. So the claims of a caller are
                     renewed even while its event loop is blocked.
    calling thread   `help`. A thread that must wait for its result anyway, and finds the store idle, commits the batch
                     itself. That saves two thread switches.
    event loop       `nudge`, then `pipeline.py`, if the store can send without waiting. Otherwise the loop wakes the
                     I/O thread.

    caller       write() --> queue --> wait -----------------------------------------------> result
                               |                                                                ^
    batch                      '--> gather --> commit, or encode + send ... complete --> resolve futures

The mutex guards the queue and all other state here. It is held briefly, and never during I/O. The store lock belongs to
`Pipeline` and is taken before the mutex.

Rules, with a test for each in `tests/store/dispatch/test_batcher.py`:

* A batch has at most one write of a key. Later writes of the key wait, in order of arrival. If the entry that the batch
  returned refuses a queued `begin`, that is its result. So a flood of duplicates costs one write.
* A batch that fails because of its data is halved until the write that causes the failure is alone.
* A queued `begin` or background renewal that nothing waits for any more is withdrawn. If such a `begin` was already
  sent and then applied, its claim is released. All other writes are always carried out.
* The batcher never repeats a write that may have been applied. A caller that gets `StoreUnavailable` may send the same
  write, with the same write id, again.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from onceward.core.claim import Entry, Ref, Status, Write, WriteResult, doubted
from onceward.core.log_event import log_event
from onceward.errors import OncewardError, StoreClosed, StoreUnavailable, WriteRefused
from onceward.store import BATCH_WRITES_MAX, PAGE_MAX, BatchFailed, Reading, Store
from onceward.store.dispatch.future import RESULT_SECONDS, StoreFuture, resolve_all, resolve_one
from onceward.store.dispatch.lapse import LapsedClaims
from onceward.store.dispatch.pipeline import Pipeline
from onceward.store.dispatch.queue import Batch, Queue, QueuedCall, QueuedWrite, release_for
from onceward.store.dispatch.renewal import KeyWatch, Renewal, Renewals, WatchResult
from onceward.store.dispatch.wakeup import Wakeup
from onceward.store.failure_streak import FailureStreak
from onceward.store.forks import at_fork
from onceward.store.write_id import write_id

# An idle I/O thread ends after this time, so that a forgotten ledger leaves no thread. The next call starts another.
IDLE_SECONDS = 10.0

# The pause between two pages of one purge, so that claims do not wait long behind it.
PURGE_PAUSE_SECONDS = 0.05

T = TypeVar("T")

logger = logging.getLogger("onceward.store")


class Batcher:
    """The dispatcher to one store: its queue, its batches and its I/O thread."""

    def __init__(
        self, store: Store, proved_dead: Callable[[str], bool], on_doubt: Callable[[Entry], None] = lambda _: None
    ) -> None:
        self.store = store
        self.proved_dead = proved_dead
        self.on_doubt = on_doubt  # called for each claim that a write of this process put in doubt; must not block
        self._closed = False
        self._purge_seconds = math.inf
        self._purge_streak = FailureStreak()
        self.purge_is_behind = False  # whether the last page of the background purge was full, so that more is left
        self._reset()
        _open_batchers.add(self)

    def _reset(self) -> None:
        self.mutex = threading.Lock()  # guards everything below
        self._pipeline = Pipeline(self.store)
        self._wakeup = Wakeup()
        self._thread: threading.Thread | None = None
        self.queue = Queue()
        self._calls: deque[QueuedCall[object]] = deque()
        self._renewals = Renewals()
        self._lapsed_claims = LapsedClaims()
        self._nudged: set[asyncio.AbstractEventLoop] = set()
        self._purge_at = time.monotonic() + self._purge_seconds

    # For callers, on any thread.

    @staticmethod
    def monotonic() -> float:
        return time.monotonic()

    def write(self, write: Write) -> QueuedWrite:
        """Queue a write. It is sent when someone waits for the returned future."""
        queued = QueuedWrite(write, self.mutex, self)
        with self.mutex:
            self._refuse_closed()
            self.queue.append(queued)
        return queued

    def call(self, work: Callable[[Store], T]) -> QueuedCall[T]:
        """Run a function with the store on the I/O thread, after the writes that are queued now."""
        call = QueuedCall(work, self.mutex)
        with self.mutex:
            self._refuse_closed()
            self._calls.append(call)  # type: ignore[arg-type]  # the queue has calls of every type
            self._wake_at(-math.inf)
        return call

    def read(self, refs: Sequence[Ref]) -> QueuedCall[Reading]:
        return self.call(lambda store: store.read(refs))

    def watch(self, ref: Ref, seconds: float) -> KeyWatch:
        watch = KeyWatch(ref, time.monotonic(), seconds, self.mutex, RESULT_SECONDS)
        with self.mutex:
            self._refuse_closed()
            self._renewals.add_watch(watch)
            self._wake_at(watch.next_at)
        return watch

    def sleep(self, seconds: float) -> StoreFuture[None]:
        until = time.monotonic() + seconds
        timer: StoreFuture[None] = StoreFuture(self.mutex, seconds + RESULT_SECONDS)
        with self.mutex:
            self._refuse_closed()
            self._renewals.add_timer(until, timer)
            self._wake_at(until)
        return timer

    def start_renewal(self, entry: Entry, lease: int, retain: int, seconds: float) -> Renewal:
        """Renew this claim in the background, for at most `seconds`."""
        now = time.monotonic()
        every = lease / 3_000_000
        renewal = Renewal(entry, lease, retain, every, now + every, now + seconds)
        with self.mutex:
            self._refuse_closed()
            self._renewals.add(renewal)
            self._wake_at(renewal.next_at)
        return renewal

    def stop_renewal(self, renewal: Renewal) -> None:
        """Stop renewing. A queued renewal is withdrawn, so that it cannot follow the next write of the claim."""
        with self.mutex:
            self._renewals.remove(renewal)

    def purge_every(self, seconds: float) -> None:
        """Start the background purge, which also puts lapsed claims in doubt, a page at a time."""
        with self.mutex:
            self._refuse_closed()
            self._purge_seconds = seconds
            self._purge_at = time.monotonic()
            self._wake_at(self._purge_at)

    def close(self) -> None:
        """Commit the queued writes, close the store and end the thread. Safe to call twice."""
        with self.mutex:
            if self._closed:
                return
            self._closed = True
            thread = self._thread
            if thread is not None:
                self._wake_at(-math.inf)
        if thread is not None and thread is not threading.current_thread():
            thread.join(RESULT_SECONDS)
        with self._pipeline.exclusive_store(self):
            while self._serve():
                pass
            self.store.close()

    def after_fork(self) -> None:
        """Start over in a forked child: the thread, locks and connections belong to the parent."""
        self._reset()
        self.store.abandon()

    # Starting queued writes.

    def nudge(self, loop: asyncio.AbstractEventLoop) -> None:
        """Send the writes of this iteration of the loop in one batch, at its end or earlier if there are many."""
        if loop not in self._nudged:
            self._nudged.add(loop)
            loop.call_soon(self._end_of_iteration, loop)
        elif self._pipeline.is_early(len(self.queue)):
            self._pipeline.send(self, loop)

    def _end_of_iteration(self, loop: asyncio.AbstractEventLoop) -> None:
        self._nudged.discard(loop)
        self.send_queued(loop)

    def send_queued(self, loop: asyncio.AbstractEventLoop) -> None:
        """Send the queued writes from this loop if the store can, and otherwise by the I/O thread."""
        if self.queue:
            self._pipeline.send(self, loop)

    def wake_thread(self) -> None:
        with self.mutex:
            self._wake_at(-math.inf)

    def wake_thread_at(self, deadline: float) -> None:
        with self.mutex:
            self._wake_at(deadline)

    def help(self) -> None:
        """Commit a batch on the calling thread if the store is idle; otherwise wake the I/O thread."""
        if self._pipeline.lock.acquire(blocking=False):
            try:
                self._serve()
            finally:
                self._pipeline.lock.release()
        with self.mutex:
            # In a forked child, nothing else might ever start the I/O thread, which purges.
            if self.queue or (self._thread is None and self._purge_at < math.inf):
                self._wake_at(-math.inf)

    def _wake_at(self, deadline: float) -> None:
        """Make sure that the I/O thread is awake at this time (minus infinity: at once). The caller holds the mutex."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="onceward-store", daemon=True)
            self._thread.start()
        self._wakeup.wake_at(deadline)

    def _refuse_closed(self) -> None:
        if self._closed:
            raise StoreClosed("the ledger is closed; open another one")

    # The I/O thread.

    def _work(self) -> None:
        while self._rest():
            with self._pipeline.exclusive_store(self):
                with self.mutex:
                    calls, self._calls = self._calls, deque()
                    before = self.queue.all() if calls else []
                    self._wakeup.called = False
                self._serve()
                # A read must not overtake a write that was queued before it, even the second write of its key.
                for _ in before:
                    if all(queued.done or queued.abandoned for queued in before) or not self._serve():
                        break
                self._run_calls(calls)
                self._poll()
                self._purge()
            self._renew()

    def _rest(self) -> bool:
        """Sleep until there is something to do; return false if the thread must end."""
        slept = handed_over = False
        while True:
            with self.mutex:
                if self._wakeup.called or self._calls:
                    return True
                if self.queue and not handed_over:
                    if self._closed or not self._pipeline.hand_over(self, self.queue.loop()):
                        return True
                    handed_over = True
                if self._closed:
                    resolve_all([(one, None, StoreClosed("the ledger was closed")) for one in self._renewals.stop()])
                    self._thread = None
                    return False
                check_at = self._pipeline.check_at(queued=bool(self.queue))
                due, now = min(self._renewals.next_at(), self._purge_at, check_at), time.monotonic()
                if due <= now:
                    return True
                if slept and due == math.inf:
                    self._thread = None
                    return False
                seconds = self._wakeup.start_sleep(min(due, now + IDLE_SECONDS))
            slept = not self._wakeup.sleep(seconds, self.mutex)

    def _serve(self) -> bool:
        """Commit one batch from the queue; return false if it is empty. The caller holds the store lock."""
        with self.mutex:
            batch = self.queue.gather()
        if not batch:
            return False
        try:
            self._commit(batch)
        except BaseException:
            # An interrupt on a caller's thread. The other callers must not wait for results that will never arrive.
            self.fail(batch, StoreUnavailable("the commit was interrupted"))
            raise
        return True

    def _commit(self, batch: Batch) -> None:
        self.complete(batch, lambda: self.store.commit([queued.write for queued in batch]), self.halve)

    def halve(self, batch: Batch) -> None:
        middle = len(batch) // 2
        self._commit(batch[:middle])
        self._commit(batch[middle:])

    def complete(self, batch: Batch, commit: Callable[[], list[WriteResult]], split: Callable[[Batch], None]) -> None:
        """Get the results of a batch and resolve its writes. A batch that fails because of its data goes to `split`."""
        try:
            results = commit()
        except BatchFailed as error:
            if len(batch) > 1:
                split(batch)
                return
            self.fail(batch, StoreUnavailable(str(error)) if error.transient else WriteRefused(str(error)))
        except OncewardError as error:
            self.fail(batch, error)
        except Exception as error:  # noqa: BLE001  # a bug in a store must not end the thread; writes may be applied
            self.fail(batch, StoreUnavailable(f"the store failed unexpectedly: {error!r}"))
        else:
            self._resolve(batch, results)
            for number, result in enumerate(results):
                if result.entry is not None and result.entry.status is Status.IN_DOUBT:
                    self.notify_doubt(batch[number].write, result)

    def notify_doubt(self, write: Write, result: WriteResult) -> WriteResult:
        """Call `on_doubt` if this write put a claim in doubt, and return the result."""
        if result.entry is not None and doubted(write, result):
            self.on_doubt(result.entry)
        return result

    def put_in_doubt(self, limit: int) -> QueuedCall[int]:
        return self.call(lambda store: self._lapsed_claims.put_in_doubt(store, limit, self.on_doubt))

    def _resolve(self, batch: Batch, results: list[WriteResult]) -> None:
        if len(batch) == 1 and self._resolve_one(batch[0], results[0]):
            return
        resolved: list[tuple[QueuedWrite, WriteResult | None, Exception | None]] = [
            (queued, result, None) for queued, result in zip(batch, results, strict=True)
        ]
        with self.mutex:
            for queued, result in zip(batch, results, strict=True):
                if queued.abandoned and (release := release_for(queued.write, result)) is not None:
                    self.queue.push(QueuedWrite(release, self.mutex, self))
            if self.queue or self._renewals.watching:
                known = {Ref(queued.write.scope, queued.write.key): a for queued, a in zip(batch, results, strict=True)}
                resolve_all([(watch, seen, None) for watch, seen in self._renewals.watches_finished_by(known)])
                resolved += [(queued, result, None) for queued, result in self.queue.refused_by(known)]
            resolve_all(resolved)

    def _resolve_one(self, queued: QueuedWrite, result: WriteResult) -> bool:
        """Resolve a batch of one write; return false if the queue or a watch may depend on its result."""
        with self.mutex:
            if queued.abandoned or self.queue or self._renewals.watching:
                return False
            resolve_one(queued, result)
            return True

    def _run_calls(self, calls: Iterable[QueuedCall[object]]) -> None:
        for call in calls:
            result: object = None
            failure: Exception | None = None
            try:
                result = None if call.abandoned else call.work(self.store)
            except OncewardError as error:
                failure = error
            except Exception as error:  # noqa: BLE001  # as in _commit
                failure = StoreUnavailable(f"the store failed unexpectedly: {error!r}")
            with self.mutex:
                resolve_all([(call, result, failure)])

    def fail(self, batch: Iterable[StoreFuture[T]], error: OncewardError) -> None:
        # Each waiter gets a separate exception: a shared one would collect the tracebacks of all.
        with self.mutex:
            resolve_all([(queued, None, type(error)(*error.args)) for queued in batch])

    def _renew(self) -> None:
        now = time.monotonic()
        with self.mutex:
            for renewal in self._renewals.due_renewals(now):
                renewal.last_write = queued = QueuedWrite(renewal.move(write_id()), self.mutex, self)
                self.queue.append(queued)
            resolve_all([(timer, None, None) for timer in self._renewals.elapsed_timers(now)])

    def _purge(self) -> None:
        if time.monotonic() < self._purge_at or self._closed:
            return
        pause = self._purge_seconds
        try:
            doubts = self._lapsed_claims.put_in_doubt(self.store, PAGE_MAX, self.on_doubt)
            self.purge_is_behind = self.store.purge(PAGE_MAX) >= PAGE_MAX
            if self.purge_is_behind or doubts:
                pause = min(pause, PURGE_PAUSE_SECONDS)
            if (ended := self._purge_streak.succeeded()) is not None:
                log_event(logger.info, "purge_recovered", failure_count=ended.failure_count, seconds=ended.seconds)
        except Exception as error:  # noqa: BLE001  # nothing waits for it; the next run deletes what is left
            if (count := self._purge_streak.failed(error)) is not None:
                log_event(
                    logger.warning, "purge_failed", retry_in_seconds=pause, reason=str(error), failure_count=count
                )
        self._purge_at = time.monotonic() + pause

    def _poll(self) -> None:
        """Read all watched keys that are due, in one read."""
        now = time.monotonic()
        with self.mutex:
            due = self._renewals.due_watches(now)
        if not due:
            return
        refs = list(dict.fromkeys(watch.ref for watch in due))[:BATCH_WRITES_MAX]
        try:
            reading = self.store.read(refs)
        except OncewardError as error:
            self.fail(due, error)
            return
        seen = {ref: self._watch_result(entry, reading.now) for ref, entry in zip(refs, reading.entries, strict=True)}
        with self.mutex:
            resolve_all([(watch, found, None) for watch, found in self._renewals.finished_watches(due, seen, now)])

    def _watch_result(self, entry: Entry | None, now: int) -> WatchResult:
        held = entry is not None and entry.status is Status.IN_PROGRESS
        return WatchResult(entry, now, dead=held and entry is not None and self.proved_dead(entry.holder))


_open_batchers: weakref.WeakSet[Batcher] = weakref.WeakSet()


def _after_fork() -> None:
    for batcher in list(_open_batchers):
        batcher.after_fork()


at_fork(after_in_child=_after_fork)
