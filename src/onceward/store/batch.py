"""The batcher: every write of the process, from any loop or thread, goes to the store in shared batches.

While one batch is in flight the next one gathers; a batch never waits for a timer. A thread of the batcher's own serves
the store, so that a caller whose loop is blocked still has its claims renewed; a thread that waits for its own answer
anyway, and finds the store idle, commits the batch itself and saves two thread switches; and where the store can, an
event loop sends its batches itself (`store/flights.py`). Rules, with a test each in `tests/store/test_batch.py`:

* One write of a key in a batch; later ones wait in arrival order. When the entry that came back refuses a waiting
  `begin`, that is its answer: a flood of duplicates costs one write.
* A batch that fails because of its data is halved until the culprit stands alone.
* A `begin` that nobody waits for any more is withdrawn while queued, and released when its answer says that it was
  applied. Settle, fail and renew are never withdrawn.
* Nothing is ever sent twice from here: whoever gets `StoreUnavailable` may repeat the same write id.
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

from onceward.core.claim import Answer, Entry, Ref, Status, Write, doubted
from onceward.errors import OncewardError, StoreClosed, StoreUnavailable, WriteRefused
from onceward.store import BATCH_WRITES_MAX, PAGE_MAX, BatchFailed, Reading, Store
from onceward.store.bell import Bell
from onceward.store.flights import Flights
from onceward.store.forks import at_fork
from onceward.store.lapse import Lapse
from onceward.store.pending import ANSWER_SECONDS, Pending, tell, tell_one
from onceward.store.queue import Call, Queue, Sent, release_for
from onceward.store.upkeep import Keep, Seen, Upkeep, Watch
from onceward.store.write_id import write_id

# A thread with nothing to do ends after this; the next call starts another. A forgotten ledger leaves no thread.
IDLE_SECONDS = 10.0

# Between two pages of one purge, so that claims are not kept waiting behind it.
PURGE_PAUSE_SECONDS = 0.05

T = TypeVar("T")

logger = logging.getLogger("onceward.store")


class Batcher:
    """A store behind its one I/O thread."""

    def __init__(
        self, store: Store, proved_dead: Callable[[str], bool], on_doubt: Callable[[Entry], None] = lambda _: None
    ) -> None:
        self.store = store
        self.proved_dead = proved_dead
        self.on_doubt = on_doubt  # told of each claim that a write of ours put in doubt; returns at once
        self._closed = False
        self._purge_seconds = math.inf
        self._reset()
        _open_batchers.add(self)

    def _reset(self) -> None:
        self.mutex = threading.Lock()  # guards everything below
        self._flights = Flights(self.store)
        self._bell = Bell()
        self._thread: threading.Thread | None = None
        self.queue = Queue()
        self._calls: deque[Call[object]] = deque()
        self._upkeep = Upkeep()
        self._lapse = Lapse()
        self._nudged: set[asyncio.AbstractEventLoop] = set()
        self._purge_at = time.monotonic() + self._purge_seconds

    # What callers use, from any thread.

    @staticmethod
    def monotonic() -> float:
        return time.monotonic()

    def write(self, write: Write) -> Sent:
        """Queue a write. Whoever waits for it sets it going."""
        sent = Sent(write, self.mutex, self)
        with self.mutex:
            self._refuse_closed()
            self.queue.append(sent)
        return sent

    def call(self, work: Callable[[Store], T]) -> Call[T]:
        call = Call(work, self.mutex)
        with self.mutex:
            self._refuse_closed()
            self._calls.append(call)  # type: ignore[arg-type]  # a queue of calls of every kind
            self._ring(-math.inf)
        return call

    def read(self, refs: Sequence[Ref]) -> Call[Reading]:
        return self.call(lambda store: store.read(refs))

    def watch(self, ref: Ref, seconds: float) -> Watch:
        watch = Watch(ref, time.monotonic(), seconds, self.mutex, ANSWER_SECONDS)
        with self.mutex:
            self._refuse_closed()
            self._upkeep.watch(watch)
            self._ring(watch.next_at)
        return watch

    def sleep(self, seconds: float) -> Pending[None]:
        until = time.monotonic() + seconds
        nap: Pending[None] = Pending(self.mutex, seconds + ANSWER_SECONDS)
        with self.mutex:
            self._refuse_closed()
            self._upkeep.nap(until, nap)
            self._ring(until)
        return nap

    def keep(self, entry: Entry, lease: int, retain: int, seconds: float) -> Keep:
        """Renew this claim in the background, for at most `seconds`."""
        now = time.monotonic()
        every = lease / 3_000_000
        kept = Keep(entry, lease, retain, every, now + every, now + seconds)
        with self.mutex:
            self._refuse_closed()
            self._upkeep.keep(kept)
            self._ring(kept.next_at)
        return kept

    def drop(self, kept: Keep) -> None:
        """Stop renewing; a renewal still queued is withdrawn, so that nothing of it follows what comes next."""
        with self.mutex:
            self._upkeep.drop(kept)

    def purge_every(self, seconds: float) -> None:
        """In the background, a page now and again every so often: purge, and put lapsed claims in doubt."""
        with self.mutex:
            self._refuse_closed()
            self._purge_seconds = seconds
            self._purge_at = time.monotonic()
            self._ring(self._purge_at)

    def close(self) -> None:
        """Finish what is queued, close the store, end the thread. Safe to call twice."""
        with self.mutex:
            if self._closed:
                return
            self._closed = True
            thread = self._thread
            if thread is not None:
                self._ring(-math.inf)
        if thread is not None and thread is not threading.current_thread():
            thread.join(ANSWER_SECONDS)
        with self._flights.store_to_oneself(self):
            while self._serve():
                pass
            self.store.close()

    def after_fork(self) -> None:
        """In a forked child: the parent's thread, locks and connections are not ours."""
        self._reset()
        self.store.abandon()

    # How a queued write gets going.

    def nudge(self, loop: asyncio.AbstractEventLoop) -> None:
        """Send once for all that this turn of the loop queues, not once for each; twice when that is much."""
        if loop not in self._nudged:
            self._nudged.add(loop)
            loop.call_soon(self._end_of_turn, loop)
        elif self._flights.is_early(len(self.queue)):
            self._flights.launch(self, loop)

    def _end_of_turn(self, loop: asyncio.AbstractEventLoop) -> None:
        self._nudged.discard(loop)
        self.set_going(loop)

    def set_going(self, loop: asyncio.AbstractEventLoop) -> None:
        """From this loop itself, where the store can; otherwise by the thread."""
        if self.queue:
            self._flights.launch(self, loop)

    def call_thread(self) -> None:
        with self.mutex:
            self._ring(-math.inf)

    def call_thread_at(self, moment: float) -> None:
        with self.mutex:
            self._ring(moment)

    def help(self) -> None:
        """Commit a batch on the calling thread if nobody else speaks to the store; otherwise the thread is rung."""
        if self._flights.lock.acquire(blocking=False):
            try:
                self._serve()
            finally:
                self._flights.lock.release()
        with self.mutex:
            # In a forked child nobody else may ever start the thread that purges.
            if self.queue or (self._thread is None and self._purge_at < math.inf):
                self._ring(-math.inf)

    def _ring(self, moment: float) -> None:
        """Make sure that the thread is awake at this moment (at once: minus infinity). The caller holds the mutex."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="onceward-store", daemon=True)
            self._thread.start()
        self._bell.ring(moment)

    def _refuse_closed(self) -> None:
        if self._closed:
            raise StoreClosed("the ledger was closed; open it again")

    # What the I/O thread does.

    def _work(self) -> None:
        while self._rest():
            with self._flights.store_to_oneself(self):
                with self.mutex:
                    calls, self._calls = self._calls, deque()
                    before = self.queue.all() if calls else []
                    self._bell.called = False
                self._serve()
                # A read does not overtake a write that was queued before it, be it the second of its key.
                for _ in before:
                    if all(sent.done or sent.abandoned for sent in before) or not self._serve():
                        break
                self._answer_calls(calls)
                self._poll()
                self._purge()
            self._renew()

    def _rest(self) -> bool:
        """Sleep until there is something to do; false when the thread is to end."""
        rested = handed_over = False
        while True:
            with self.mutex:
                if self._bell.called or self._calls:
                    return True
                if self.queue and not handed_over:
                    if self._closed or not self._flights.hand_over(self, self.queue.loop()):
                        return True
                    handed_over = True
                if self._closed:
                    tell([(one, None, StoreClosed("the ledger was closed")) for one in self._upkeep.stop()])
                    self._thread = None
                    return False
                look_at = self._flights.look_at(queued=bool(self.queue))
                due, now = min(self._upkeep.next_at(), self._purge_at, look_at), time.monotonic()
                if due <= now:
                    return True
                if rested and due == math.inf:
                    self._thread = None
                    return False
                seconds = self._bell.lie_down(min(due, now + IDLE_SECONDS))
            rested = not self._bell.sleep(seconds, self.mutex)

    def _serve(self) -> bool:
        """Commit what is queued, once; the caller holds the store lock. False when there was nothing."""
        with self.mutex:
            batch = self.queue.gather()
        if not batch:
            return False
        try:
            self._commit(batch)
        except BaseException:
            # An interrupt on a caller's thread: the others must not wait for an answer that nobody will bring.
            self.fail(batch, StoreUnavailable("the commit was interrupted"))
            raise
        return True

    def _commit(self, batch: list[Sent]) -> None:
        self.bring(batch, lambda: self.store.commit([sent.write for sent in batch]), self.halve)

    def halve(self, batch: list[Sent]) -> None:
        middle = len(batch) // 2
        self._commit(batch[:middle])
        self._commit(batch[middle:])

    def bring(self, batch: list[Sent], ask: Callable[[], list[Answer]], apart: Callable[[list[Sent]], None]) -> None:
        """Ask for the answers and hand them out. A batch that fails because of its data is taken `apart`."""
        try:
            answers = ask()
        except BatchFailed as error:
            if len(batch) > 1:
                apart(batch)
                return
            self.fail(batch, StoreUnavailable(str(error)) if error.transient else WriteRefused(str(error)))
        except OncewardError as error:
            self.fail(batch, error)
        except Exception as error:  # noqa: BLE001  # a store's bug must not end the thread; nobody knows what was applied
            self.fail(batch, StoreUnavailable(f"the store failed unexpectedly: {error!r}"))
        else:
            self._answer(batch, answers)
            for number, answer in enumerate(answers):
                if answer.entry is not None and answer.entry.status is Status.IN_DOUBT:
                    self.notice(batch[number].write, answer)

    def notice(self, write: Write, answer: Answer) -> Answer:
        """Tell of a claim that this write put in doubt."""
        if answer.entry is not None and doubted(write, answer):
            self.on_doubt(answer.entry)
        return answer

    def put_in_doubt(self, limit: int) -> Call[int]:
        return self.call(lambda store: self._lapse.put_in_doubt(store, limit, self.on_doubt))

    def _answer(self, batch: list[Sent], answers: list[Answer]) -> None:
        if len(batch) == 1 and self._answer_one(batch[0], answers[0]):
            return
        results: list[tuple[Sent, Answer | None, Exception | None]] = [
            (sent, answer, None) for sent, answer in zip(batch, answers, strict=True)
        ]
        with self.mutex:
            for sent, answer in zip(batch, answers, strict=True):
                if sent.abandoned and (release := release_for(sent.write, answer)) is not None:
                    self.queue.push(Sent(release, self.mutex, self))
            if self.queue or self._upkeep.watching:
                known = {Ref(sent.write.scope, sent.write.key): a for sent, a in zip(batch, answers, strict=True)}
                tell([(watch, seen, None) for watch, seen in self._upkeep.told(known)])
                results += [(sent, answer, None) for sent, answer in self.queue.refused_by(known)]
            tell(results)

    def _answer_one(self, sent: Sent, answer: Answer) -> bool:
        """Answer the only caller there is; false when others are concerned."""
        with self.mutex:
            if sent.abandoned or self.queue or self._upkeep.watching:
                return False
            tell_one(sent, answer)
            return True

    def _answer_calls(self, calls: Iterable[Call[object]]) -> None:
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
                tell([(call, result, failure)])

    def fail(self, batch: Iterable[Pending[T]], error: OncewardError) -> None:
        # Each waiter raises an exception of its own: a shared one would collect the tracebacks of all.
        with self.mutex:
            tell([(sent, None, type(error)(*error.args)) for sent in batch])

    def _renew(self) -> None:
        now = time.monotonic()
        with self.mutex:
            for kept in self._upkeep.renewals(now):
                kept.renewal = sent = Sent(kept.move(write_id()), self.mutex, self)
                self.queue.append(sent)
            tell([(nap, None, None) for nap in self._upkeep.rested(now)])

    def _purge(self) -> None:
        if time.monotonic() < self._purge_at or self._closed:
            return
        pause = self._purge_seconds
        try:
            doubts = self._lapse.put_in_doubt(self.store, PAGE_MAX, self.on_doubt)
            if self.store.purge(PAGE_MAX) >= PAGE_MAX or doubts:
                pause = min(pause, PURGE_PAUSE_SECONDS)
        except Exception as error:  # noqa: BLE001  # nobody waits for it; what is left is deleted next time
            logger.warning("the background purge failed and is tried again in %g s: %s", pause, error)
        self._purge_at = time.monotonic() + pause

    def _poll(self) -> None:
        """One read for everyone who waits for a key that another process holds."""
        now = time.monotonic()
        with self.mutex:
            due = self._upkeep.due(now)
        if not due:
            return
        refs = list(dict.fromkeys(watch.ref for watch in due))[:BATCH_WRITES_MAX]
        try:
            reading = self.store.read(refs)
        except OncewardError as error:
            self.fail(due, error)
            return
        seen = {ref: self._look(entry, reading.now) for ref, entry in zip(refs, reading.entries, strict=True)}
        with self.mutex:
            tell([(watch, found, None) for watch, found in self._upkeep.judge(due, seen, now)])

    def _look(self, entry: Entry | None, now: int) -> Seen:
        held = entry is not None and entry.status is Status.IN_PROGRESS
        return Seen(entry, now, dead=held and entry is not None and self.proved_dead(entry.holder))


_open_batchers: weakref.WeakSet[Batcher] = weakref.WeakSet()


def _after_fork() -> None:
    for batcher in list(_open_batchers):
        batcher.after_fork()


at_fork(after_in_child=_after_fork)
