"""The batcher: every write of the process, from any loop or thread, goes to the store in shared batches.

While one batch is in flight the next one gathers; a batch never waits for a timer. One thread owns the store, so a
caller whose loop is blocked still has its claims renewed. Rules, each with a test in `tests/store/test_batch.py`:

* One write of a key in a batch; later ones wait in arrival order. When the entry that came back refuses a waiting
  `begin`, that is its answer: a flood of duplicates costs one write.
* A batch that fails because of its data is halved until the culprit stands alone.
* A `begin` that nobody waits for any more is withdrawn while queued, and released when its answer says that it was
  applied. Settle, fail and renew are never withdrawn.
* Nothing is ever sent twice from here: whoever gets `StoreUnavailable` may repeat the same write id.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import os
import secrets
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from onceward.core.claim import Answer, Append, Begin, Entry, Move, Ref, Status, Verb, Write, apply
from onceward.errors import OncewardError, StoreClosed, StoreUnavailable, WriteRefused
from onceward.store import BATCH_BYTES_MAX, BATCH_WRITES_MAX, BatchFailed, Reading, Store
from onceward.store.pending import Pending, wake

# How long a caller waits for one answer before it is told that the store is unavailable.
ANSWER_SECONDS = 5.0
# A waiting caller looks after its key this often at first, and this often in the end.
POLL_SECONDS_MIN = 0.010
POLL_SECONDS_MAX = 0.250
# A thread with nothing to do ends after this; the next call starts another. A forgotten ledger leaves no thread.
IDLE_SECONDS = 10.0

T = TypeVar("T")


class Sent(Pending[Answer]):
    """A write on its way."""

    __slots__ = ("write",)

    def __init__(self, write: Write, mutex: threading.Lock) -> None:
        super().__init__(mutex, ANSWER_SECONDS)
        self.write = write


class Call(Pending[T], Generic[T]):
    """Anything else to do with the store: a scan, a purge."""

    __slots__ = ("work",)

    def __init__(self, work: Callable[[Store], T], mutex: threading.Lock) -> None:
        super().__init__(mutex, ANSWER_SECONDS)
        self.work = work


@dataclass(frozen=True, slots=True)
class Seen:
    """What a watch ended with: the entry as last read, and whether its holder is proved dead."""

    entry: Entry | None
    now: int
    dead: bool = False


class Watch(Pending[Seen]):
    """Waits until a held key is held no longer, or could be taken over, or the time is up."""

    __slots__ = ("interval", "next_at", "ref", "until")

    def __init__(self, ref: Ref, now: float, seconds: float, mutex: threading.Lock) -> None:
        super().__init__(mutex, seconds + ANSWER_SECONDS)
        self.ref = ref
        self.interval = POLL_SECONDS_MIN
        self.next_at = now + POLL_SECONDS_MIN
        self.until = now + seconds


@dataclass(slots=True)
class Keep:
    """A claim to be renewed every third of its lease until `until`."""

    ref: Ref
    version: int
    lease: int
    retain: int
    every: float
    until: float
    active: bool = True
    renewal: Sent | None = field(default=None)


class Batcher:
    """A store behind its one I/O thread."""

    def __init__(self, store: Store, proved_dead: Callable[[str], bool]) -> None:
        self.store = store
        self.proved_dead = proved_dead
        self._closed = False
        self._reset()
        _open_batchers.add(self)

    def _reset(self) -> None:
        self._mutex = threading.Lock()
        self._bell = threading.Lock()
        self._bell.acquire()
        self._asleep = False
        self._thread: threading.Thread | None = None
        self._queue: deque[Sent] = deque()
        self._calls: deque[Call[object]] = deque()
        self._watches: list[Watch] = []
        self._timers: list[tuple[float, int, Keep | Pending[None]]] = []
        self._order = itertools.count()

    # What callers use, from any thread.

    @staticmethod
    def monotonic() -> float:
        return time.monotonic()

    def write(self, write: Write) -> Sent:
        sent = Sent(write, self._mutex)
        with self._mutex:
            self._queue.append(sent)
            ring = self._wanted()
        if ring:
            self._bell.release()
        return sent

    def call(self, work: Callable[[Store], T]) -> Call[T]:
        call = Call(work, self._mutex)
        with self._mutex:
            self._calls.append(call)  # type: ignore[arg-type]  # a queue of calls of every kind
            ring = self._wanted()
        if ring:
            self._bell.release()
        return call

    def read(self, refs: Sequence[Ref]) -> Call[Reading]:
        return self.call(lambda store: store.read(refs))

    def watch(self, ref: Ref, seconds: float) -> Watch:
        watch = Watch(ref, time.monotonic(), seconds, self._mutex)
        with self._mutex:
            self._watches.append(watch)
            ring = self._wanted()
        if ring:
            self._bell.release()
        return watch

    def sleep(self, seconds: float) -> Pending[None]:
        nap: Pending[None] = Pending(self._mutex, seconds + ANSWER_SECONDS)
        self._at(time.monotonic() + seconds, nap)
        return nap

    def keep(self, entry: Entry, lease: int, retain: int, seconds: float) -> Keep:
        """Renew this claim in the background, for at most `seconds`."""
        now = time.monotonic()
        kept = Keep(entry.ref, entry.version, lease, retain, lease / 3_000_000, now + seconds)
        self._at(now + kept.every, kept)
        return kept

    def drop(self, kept: Keep) -> None:
        """Stop renewing; a renewal still queued is withdrawn, so that nothing of it follows what comes next."""
        with self._mutex:
            kept.active = False
            if kept.renewal is not None:
                kept.renewal.abandoned = True

    def close(self) -> None:
        """Finish what is queued, close the store, end the thread. Safe to call twice."""
        with self._mutex:
            if self._closed:
                return
            self._closed = True
            thread = self._thread
            ring, self._asleep = self._asleep, False
        if ring:
            self._bell.release()
        if thread is None:
            self.store.close()
        elif thread is not threading.current_thread():
            thread.join(ANSWER_SECONDS)

    def after_fork(self) -> None:
        """In a forked child: the parent's thread, locks and connections are not ours."""
        self._reset()
        self.store.abandon()

    def _at(self, moment: float, what: Keep | Pending[None]) -> None:
        with self._mutex:
            heapq.heappush(self._timers, (moment, next(self._order), what))
            ring = self._wanted()
        if ring:
            self._bell.release()

    def _wanted(self) -> bool:
        """Make sure that the thread runs; true when it sleeps and must be rung. The caller holds the mutex."""
        if self._closed:
            raise StoreClosed("the ledger was closed; open it again")
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="onceward-store", daemon=True)
            self._thread.start()
            return False
        ring, self._asleep = self._asleep, False
        return ring

    # What the I/O thread does.

    def _work(self) -> None:
        while True:
            with self._mutex:
                batch = self._gather()
                calls, self._calls = self._calls, deque()
            if batch:
                self._commit(batch)
            for call in calls:
                self._answer_call(call)
            self._run_timers()
            self._poll()
            if not batch and not calls and not self._rest():
                return

    def _rest(self) -> bool:
        """Sleep until there is something to do; false when the thread is to end."""
        with self._mutex:
            if self._queue or self._calls:
                return True
            if self._closed:
                self._end()
                return False
            moments = [watch.next_at for watch in self._watches]
            if self._timers:
                moments.append(self._timers[0][0])
            seconds = max(0.0, min(moments) - time.monotonic()) if moments else IDLE_SECONDS
            self._asleep = True
        if self._bell.acquire(timeout=seconds):
            return True
        with self._mutex:
            if not self._asleep:
                self._bell.acquire()  # rung between the timeout and here
                return True
            self._asleep = False
            if moments or self._queue or self._calls:
                return True
            self._thread = None
            return False

    def _end(self) -> None:
        closed = StoreClosed("the ledger was closed while this call waited")
        waiting: list[Pending[object]] = [*self._watches]  # type: ignore[list-item]
        waiting += [what for _, _, what in self._timers if not isinstance(what, Keep)]  # type: ignore[misc]
        self._watches, self._timers, self._thread = [], [], None
        self._tell([(pending, None, closed) for pending in waiting])
        self.store.close()

    def _gather(self) -> list[Sent]:
        """The next batch. The caller holds the mutex."""
        batch: list[Sent] = []
        taken: set[tuple[str, str]] = set()
        later: list[Sent] = []
        size = 0
        while self._queue and len(batch) < BATCH_WRITES_MAX and size < BATCH_BYTES_MAX:
            sent = self._queue.popleft()
            write = sent.write
            if sent.abandoned and _may_withdraw(write):
                continue
            ref = (write.scope, write.key)
            if ref in taken:
                later.append(sent)
                continue
            taken.add(ref)
            sent.sent = True
            batch.append(sent)
            size += _bytes(write)
        self._queue.extendleft(reversed(later))
        return batch

    def _commit(self, batch: list[Sent]) -> None:
        try:
            answers = self.store.commit([sent.write for sent in batch])
        except BatchFailed as error:
            if len(batch) > 1:
                middle = len(batch) // 2
                self._commit(batch[:middle])
                self._commit(batch[middle:])
                return
            self._fail(batch, StoreUnavailable(str(error)) if error.transient else WriteRefused(str(error)))
        except OncewardError as error:
            self._fail(batch, error)
        except Exception as error:  # noqa: BLE001  # a store's bug must not end the thread; nobody knows what was applied
            self._fail(batch, StoreUnavailable(f"the store failed unexpectedly: {error!r}"))
        else:
            self._answer(batch, answers)

    def _answer(self, batch: list[Sent], answers: list[Answer]) -> None:
        results: list[tuple[Pending[Answer], Answer | None, Exception | None]] = list(
            zip(batch, answers, itertools.repeat(None), strict=False)
        )
        with self._mutex:
            if self._queue:
                self._answer_duplicates(batch, answers, results)
            for sent, answer in zip(batch, answers, strict=True):
                release = _release_for(sent, answer)
                if release is not None:
                    self._queue.append(Sent(release, self._mutex))
            self._tell(results)
            if self._watches:
                self._wake_watches({(s.write.scope, s.write.key): a for s, a in zip(batch, answers, strict=True)})

    def _answer_duplicates(
        self,
        batch: list[Sent],
        answers: list[Answer],
        results: list[tuple[Pending[Answer], Answer | None, Exception | None]],
    ) -> None:
        known = {(sent.write.scope, sent.write.key): answer for sent, answer in zip(batch, answers, strict=True)}
        waiting: deque[Sent] = deque()
        for sent in self._queue:
            write = sent.write
            answer = known.get((write.scope, write.key))
            if answer is None or answer.entry is None or not isinstance(write, Begin):
                # A write that must reach the store keeps those behind it in line.
                known.pop((write.scope, write.key), None)
                waiting.append(sent)
            elif apply(answer.entry, write, answer.now, 0) is None:
                results.append((sent, Answer(applied=False, entry=answer.entry, now=answer.now), None))
            else:
                known.pop((write.scope, write.key))
                waiting.append(sent)
        self._queue = waiting

    def _answer_call(self, call: Call[object]) -> None:
        if call.abandoned:
            return
        result: object = None
        error: Exception | None = None
        try:
            result = call.work(self.store)
        except OncewardError as raised:
            error = raised
        except Exception as raised:  # noqa: BLE001  # as in _commit
            error = StoreUnavailable(f"the store failed unexpectedly: {raised!r}")
        with self._mutex:
            self._tell([(call, result, error)])

    def _fail(self, batch: Iterable[Sent], error: OncewardError) -> None:
        # Each waiter raises an exception of its own: a shared one would collect the tracebacks of all.
        with self._mutex:
            self._tell([(sent, None, type(error)(*error.args)) for sent in batch])

    def _tell(self, results: Sequence[tuple[Pending[T], T | None, Exception | None]]) -> None:
        """Hand over answers, waking each event loop once. The caller holds the mutex."""
        loops: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
        for pending, result, error in results:
            loop = pending.resolve(result, error)
            if loop is not None and pending.future is not None:
                loops.setdefault(loop, []).append(pending.future)
        for loop, futures in loops.items():
            try:
                loop.call_soon_threadsafe(wake, *futures)
            except RuntimeError:
                continue  # the loop was closed with its callers; the answers are recorded in the store

    def _run_timers(self) -> None:
        if not self._timers:
            return
        with self._mutex:
            now = time.monotonic()
            while self._timers and self._timers[0][0] <= now:
                _, _, what = heapq.heappop(self._timers)
                if isinstance(what, Keep):
                    self._renew(what, now)
                else:
                    self._tell([(what, None, None)])

    def _renew(self, kept: Keep, now: float) -> None:
        last = kept.renewal
        lost = last is not None and last.done and not _renewed(last)
        if not kept.active or lost or now >= kept.until:
            return
        if last is None or last.done:
            write_id = secrets.token_hex(8)
            move = Move(*kept.ref, write_id, Verb.RENEW, kept.version, lease=kept.lease, retain=kept.retain)
            kept.renewal = Sent(move, self._mutex)
            self._queue.append(kept.renewal)
        heapq.heappush(self._timers, (now + kept.every, next(self._order), kept))

    def _poll(self) -> None:
        """One read for everyone who waits for a key that another process holds."""
        if not self._watches:
            return
        now = time.monotonic()
        with self._mutex:
            self._watches = [watch for watch in self._watches if not watch.done and not watch.abandoned]
            due = [watch for watch in self._watches if watch.next_at <= now + POLL_SECONDS_MIN / 2]
        if not due:
            return
        refs = list(dict.fromkeys(watch.ref for watch in due))[:BATCH_WRITES_MAX]
        try:
            reading = self.store.read(refs)
        except OncewardError as error:
            with self._mutex:
                self._tell([(watch, None, type(error)(*error.args)) for watch in due])
            return
        seen = {ref: self._look(entry, reading.now) for ref, entry in zip(refs, reading.entries, strict=True)}
        with self._mutex:
            for watch in due:
                found = seen.get(watch.ref)
                if found is not None and (_is_over(found) or now >= watch.until):
                    self._tell([(watch, found, None)])
                elif found is not None:
                    watch.interval = min(watch.interval * 1.5, POLL_SECONDS_MAX)
                    watch.next_at = min(now + watch.interval, max(watch.until, now + POLL_SECONDS_MIN))

    def _look(self, entry: Entry | None, now: int) -> Seen:
        held = entry is not None and entry.status is Status.IN_PROGRESS
        return Seen(entry, now, dead=held and entry is not None and self.proved_dead(entry.holder))

    def _wake_watches(self, answers: dict[tuple[str, str], Answer]) -> None:
        for watch in self._watches:
            answer = answers.get(watch.ref)
            if answer is not None and not watch.done:
                seen = Seen(answer.entry, answer.now)
                if _is_over(seen):
                    self._tell([(watch, seen, None)])


def _is_over(seen: Seen) -> bool:
    entry = seen.entry
    return entry is None or entry.status is not Status.IN_PROGRESS or entry.lapsed(seen.now) or seen.dead


def _may_withdraw(write: Write) -> bool:
    return isinstance(write, Begin) or (isinstance(write, Move) and write.verb is Verb.RENEW)


def _release_for(sent: Sent, answer: Answer) -> Move | None:
    """The write that gives back a claim nobody waits for."""
    write, entry = sent.write, answer.entry
    if not (sent.abandoned and isinstance(write, Begin) and answer.applied):
        return None
    if entry is None or entry.status is not Status.IN_PROGRESS:
        return None
    return Move(write.scope, write.key, secrets.token_hex(8), Verb.RELEASE, entry.version)


def _renewed(renewal: Sent) -> bool:
    """False only when the store said that the claim is gone; an unanswered renewal is tried again."""
    try:
        answer = renewal.result()
    except OncewardError:
        return True
    return answer.applied or answer.locked


def _bytes(write: Write) -> int:
    match write:
        case Append():
            return sum(map(len, write.chunks))
        case Move():
            return len(write.outcome.body or b"")
        case Begin():
            return 0


_open_batchers: weakref.WeakSet[Batcher] = weakref.WeakSet()


def _after_fork() -> None:
    for batcher in list(_open_batchers):
        batcher.after_fork()


os.register_at_fork(after_in_child=_after_fork)
