"""The dispatcher of a simulated process. It does what the batcher does, with the batcher's own queue and
renewals; only its thread, its clock and the way to the store are simulated.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from tests.simulation.faults import NETWORK, Fault
from tests.simulation.violation import Crashed

from onceward.core.claim import SECOND, Begin, Entry, Mark, Move, Ref, Status, Verb, Write, WriteResult, doubted
from onceward.errors import StoreUnavailable
from onceward.store import Reading, Store
from onceward.store.dispatch.future import RESULT_SECONDS, StoreFuture, resolve_all
from onceward.store.dispatch.lapse import LapsedClaims
from onceward.store.dispatch.queue import Queue, QueuedCall, QueuedWrite, release_for
from onceward.store.dispatch.renewal import KeyWatch, Renewal, Renewals, WatchResult
from onceward.store.write_id import write_id

if TYPE_CHECKING:
    from tests.simulation.process import Process
    from tests.simulation.world import World

T = TypeVar("T")

# One way to the store or back.
LATENCIES = (200, 500, 1_000, 4_000)
# A connection that breaks is noticed at once; one that hangs, only after everyone has lost patience.
NOTICED = 2_000
HANGS = 6 * SECOND
# How late a request may arrive that its sender has long given up.
LATE = (SECOND // 10, 2 * SECOND, 7 * SECOND, 45 * SECOND)


class SimDispatcher:
    """A dispatcher with the interface of `Batcher`."""

    def __init__(self, world: World, process: Process) -> None:
        self.store: Store = world.checker
        self.mutex = threading.Lock()
        self._world = world
        self._process = process
        self._queue = Queue()
        self._renewals = Renewals()
        self._lapsed_claims = LapsedClaims()
        # As set by the ledger, and not started: a simulated process has no threads. Doubts are reported to the checker.
        self.on_doubt: Callable[[Entry], None] = world.checker.report_doubt
        self._in_flight = False
        self._is_woken = False
        self._tick_at = math.inf

    # The interface that the ledger uses.

    def monotonic(self) -> float:
        return self._process.monotonic()

    def proved_dead(self, holder: str) -> bool:
        return holder.startswith(f"host{self._process.host}/") and self._world.is_dead(holder)

    def write(self, write: Write) -> QueuedWrite:
        self._refuse_dead()
        if isinstance(write, Begin):
            # The ledger names the process it really runs in.
            write = replace(write, holder=self._process.holder)
        queued = QueuedWrite(write, self.mutex, self)
        self._soon(self._queue.append, queued)
        return queued

    def call(self, work: Callable[[Store], T]) -> QueuedCall[T]:
        self._refuse_dead()
        call = QueuedCall(work, self.mutex)
        self._process.at(self._latency(), self._run_call, call)
        return call

    def read(self, refs: Sequence[Ref]) -> QueuedCall[Reading]:
        return self.call(lambda store: store.read(refs))

    def watch(self, ref: Ref, seconds: float) -> KeyWatch:
        self._refuse_dead()
        watch = KeyWatch(ref, self.monotonic(), seconds, self.mutex, RESULT_SECONDS)
        self._renewals.add_watch(watch)
        self._tick_by(watch.next_at)
        return watch

    def sleep(self, seconds: float) -> StoreFuture[None]:
        self._refuse_dead()
        until = self.monotonic() + seconds
        timer: StoreFuture[None] = StoreFuture(self.mutex, seconds + RESULT_SECONDS)
        self._renewals.add_timer(until, timer)
        self._tick_by(until)
        return timer

    def start_renewal(self, entry: Entry, lease: int, retain: int, seconds: float) -> Renewal:
        self._refuse_dead()
        now = self.monotonic()
        every = lease / 3_000_000
        renewal = Renewal(entry, lease, retain, every, now + every, now + seconds)
        self._renewals.add(renewal)
        self._tick_by(renewal.next_at)
        return renewal

    def stop_renewal(self, renewal: Renewal) -> None:
        self._soon(self._renewals.remove, renewal)

    def put_in_doubt(self, limit: int) -> QueuedCall[int]:
        return self.call(lambda store: self._lapsed_claims.put_in_doubt(store, limit, self._world.checker.report_doubt))

    def notify_doubt(self, write: Write, result: WriteResult) -> WriteResult:
        if result.entry is not None and doubted(write, result):
            self._world.checker.report_doubt(result.entry)
        return result

    def close(self) -> None:
        """Do nothing: there is nothing to release."""

    # Called by a caller that begins to wait for a write.

    def nudge(self, _loop: asyncio.AbstractEventLoop) -> None:
        self._wake()

    def help(self) -> None:
        self._wake()

    # The I/O thread.

    def _refuse_dead(self) -> None:
        if self._process.dead:
            raise Crashed

    def _soon(self, action: Callable[[T], object], arg: T) -> None:
        """Call it now, or after the time for which the running code blocks its thread."""
        if self._world.lag:
            self._process.at(0, action, arg)
        else:
            action(arg)

    def _latency(self) -> int:
        return self._world.rng.choice(LATENCIES)

    def _wake(self) -> None:
        if not self._is_woken:
            self._is_woken = True
            self._process.at(0, self._serve)

    def _serve(self) -> None:
        """Send the next batch, if none is on its way."""
        self._is_woken = False
        if self._in_flight:
            return
        batch = self._queue.gather()
        if not batch:
            return
        fate = self._world.faults.next(sending=self._process.number)
        if fate is not None and fate not in NETWORK:
            self._world.strike(fate, self._process)
            if self._process.dead:
                return
        if self._world.gentle and any(_renews(queued.write) for queued in batch):
            fate = None  # two lost renewals in a row are a lapsed lease, which is not gentle
        self._in_flight = True
        self._send(batch, fate)

    def _send(self, batch: list[QueuedWrite], fate: Fault | None) -> None:
        world, process, latency = self._world, self._process, self._latency()
        if world.trace is not None:
            says = "" if fate is None else f"  ({fate})"
            world.note(process, f"sends {', '.join(describe(queued.write) for queued in batch)}{says}")
        match fate:
            case Fault.LOSE_REQUEST:
                process.at(latency + NOTICED, self._lost, batch)
            case Fault.HANG:
                process.at(HANGS, self._lost, batch)
            case Fault.LOSE_ANSWER:
                world.at(latency, None, self._arrive, batch, False)
                process.at(2 * latency + NOTICED, self._lost, batch)
            case Fault.LINGER:
                world.at(world.rng.choice(LATE), None, self._arrive, batch, False)
                process.at(latency + NOTICED, self._lost, batch)
            case _:
                world.at(latency, None, self._arrive, batch, True)
                if fate is Fault.DUPLICATE:
                    world.at(world.rng.choice(LATE), None, self._arrive, batch, False)

    def _arrive(self, batch: list[QueuedWrite], answered: bool) -> None:
        """Let the batch arrive at the store, whether or not its sender still lives to get the results."""
        world = self._world
        self._boundary()
        if world.is_down():
            if answered:
                self._process.at(NOTICED, self._lost, batch)
            return
        world.sender = self._process
        results = world.checker.commit([queued.write for queued in batch])
        world.sender = None
        self._boundary()
        if answered:
            self._process.at(self._latency(), self._deliver, batch, results)

    def _boundary(self) -> None:
        """The sender may fail while its request is under way: before it is applied, and after."""
        process = self._process
        if process.dead or process.frozen_until > self._world.now:
            return
        fault = self._world.faults.next(sending=None)
        if fault is not None:
            self._world.strike(fault, process)

    def _deliver(self, batch: list[QueuedWrite], results: list[WriteResult]) -> None:
        """Do what `Batcher` does with results."""
        resolved: list[tuple[QueuedWrite, WriteResult | None, Exception | None]] = [
            (queued, result, None) for queued, result in zip(batch, results, strict=True)
        ]
        for queued, result in zip(batch, results, strict=True):
            self.notify_doubt(queued.write, result)
            if queued.abandoned and (release := release_for(queued.write, result)) is not None:
                self._queue.push(QueuedWrite(release, self.mutex, self))
        if self._queue or self._renewals.watching:
            known = {Ref(queued.write.scope, queued.write.key): a for queued, a in zip(batch, results, strict=True)}
            resolve_all([(watch, seen, None) for watch, seen in self._renewals.watches_finished_by(known)])
            resolved += [(queued, result, None) for queued, result in self._queue.refused_by(known)]
        resolve_all(resolved)
        self._next()

    def _lost(self, batch: list[QueuedWrite]) -> None:
        resolve_all([(queued, None, StoreUnavailable("the connection broke")) for queued in batch])
        self._next()

    def _next(self) -> None:
        self._in_flight = False
        if self._queue:
            self._wake()

    def _run_call(self, call: QueuedCall[object]) -> None:
        fate = self._world.faults.next(sending=self._process.number)
        if fate is not None and fate not in NETWORK:
            self._world.strike(fate, self._process)
            if self._process.dead:
                return
            fate = None
        if call.abandoned:
            return
        lost = self._world.is_down() or fate in {Fault.LOSE_REQUEST, Fault.HANG, Fault.LINGER}
        result = None if lost else call.work(self.store)
        error = StoreUnavailable("the connection broke") if lost or fate is Fault.LOSE_ANSWER else None
        resolve_all([(call, result, error)])

    def _tick_by(self, moment: float) -> None:
        if moment < self._tick_at:
            self._tick_at = moment
            self._process.at(self._process.span(moment - self.monotonic()) + 1, self._tick, moment)

    def _tick(self, moment: float) -> None:
        """Do what is due beside batches: renewals, timers, and reads for watchers."""
        if moment != self._tick_at:
            return
        self._tick_at = math.inf
        now = self.monotonic()
        for renewal in self._renewals.due_renewals(now):
            renewal.last_write = queued = QueuedWrite(renewal.move(write_id()), self.mutex, self)
            self._queue.append(queued)
            self._wake()
        resolve_all([(timer, None, None) for timer in self._renewals.elapsed_timers(now)])
        due = self._renewals.due_watches(now)
        if due:
            self._poll(due, now)
        next_at = self._renewals.next_at()
        if next_at < math.inf:
            self._tick_by(next_at)

    def _poll(self, due: list[KeyWatch], now: float) -> None:
        """Do what `Batcher` does for watched keys."""
        if self._world.is_down():
            resolve_all([(watch, None, StoreUnavailable("the store is down")) for watch in due])
            return
        refs = list(dict.fromkeys(watch.ref for watch in due))
        reading = self.store.read(refs)
        seen = {ref: self._watch_result(entry, reading.now) for ref, entry in zip(refs, reading.entries, strict=True)}
        resolve_all([(watch, found, None) for watch, found in self._renewals.finished_watches(due, seen, now)])

    def _watch_result(self, entry: Entry | None, now: int) -> WatchResult:
        held = entry is not None and entry.status is Status.IN_PROGRESS
        return WatchResult(entry, now, dead=held and entry is not None and self.proved_dead(entry.holder))


def _renews(write: Write) -> bool:
    return isinstance(write, Move) and write.verb is Verb.RENEW


def describe(write: Write) -> str:
    match write:
        case Begin():
            return f"begin {write.key}" + (f" (v{write.dead} is dead)" if write.dead else "")
        case Move():
            return f"{write.verb} {write.key} v{write.version}"
        case Mark():
            return f"mark {write.key} v{write.version} #{write.seq}"
        case _:
            return f"append {write.key} v{write.version} #{write.seq}"
