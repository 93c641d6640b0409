"""The line of a simulated process to the store. It does what the batcher does, with the batcher's own queue and
upkeep; only its thread, its clock and the way to the store are simulated.
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

from onceward.core.claim import SECOND, Answer, Begin, Entry, Move, Ref, Status, Verb, Write, doubted
from onceward.errors import StoreUnavailable
from onceward.store import Reading, Store
from onceward.store.lapse import Lapse
from onceward.store.pending import ANSWER_SECONDS, Pending, tell
from onceward.store.queue import Call, Queue, Sent, release_for
from onceward.store.upkeep import Keep, Seen, Upkeep, Watch
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


class SimLine:
    """The interface of `Batcher`."""

    def __init__(self, world: World, process: Process) -> None:
        self.store: Store = world.book
        self.mutex = threading.Lock()
        self._world = world
        self._process = process
        self._queue = Queue()
        self._upkeep = Upkeep()
        self._lapse = Lapse()
        # As the ledger sets it, and left alone: a simulated process has no threads. What it would hear goes to the book.
        self.on_doubt: Callable[[Entry], None] = world.book.heard
        self._in_flight = False
        self._rung = False
        self._tick_at = math.inf

    # What the ledger uses.

    def monotonic(self) -> float:
        return self._process.monotonic()

    def proved_dead(self, holder: str) -> bool:
        return holder.startswith(f"host{self._process.host}/") and self._world.is_dead(holder)

    def write(self, write: Write) -> Sent:
        self._refuse_dead()
        if isinstance(write, Begin):
            # The ledger names the process it really runs in.
            write = replace(write, holder=self._process.holder)
        sent = Sent(write, self.mutex, self)
        self._soon(self._queue.append, sent)
        return sent

    def call(self, work: Callable[[Store], T]) -> Call[T]:
        self._refuse_dead()
        call = Call(work, self.mutex)
        self._process.at(self._latency(), self._answer_call, call)
        return call

    def read(self, refs: Sequence[Ref]) -> Call[Reading]:
        return self.call(lambda store: store.read(refs))

    def watch(self, ref: Ref, seconds: float) -> Watch:
        self._refuse_dead()
        watch = Watch(ref, self.monotonic(), seconds, self.mutex, ANSWER_SECONDS)
        self._upkeep.watch(watch)
        self._tick_by(watch.next_at)
        return watch

    def sleep(self, seconds: float) -> Pending[None]:
        self._refuse_dead()
        until = self.monotonic() + seconds
        nap: Pending[None] = Pending(self.mutex, seconds + ANSWER_SECONDS)
        self._upkeep.nap(until, nap)
        self._tick_by(until)
        return nap

    def keep(self, entry: Entry, lease: int, retain: int, seconds: float) -> Keep:
        self._refuse_dead()
        now = self.monotonic()
        every = lease / 3_000_000
        kept = Keep(entry, lease, retain, every, now + every, now + seconds)
        self._upkeep.keep(kept)
        self._tick_by(kept.next_at)
        return kept

    def drop(self, kept: Keep) -> None:
        self._soon(self._upkeep.drop, kept)

    def put_in_doubt(self, limit: int) -> Call[int]:
        return self.call(lambda store: self._lapse.put_in_doubt(store, limit, self._world.book.heard))

    def notice(self, write: Write, answer: Answer) -> Answer:
        if answer.entry is not None and doubted(write, answer):
            self._world.book.heard(answer.entry)
        return answer

    def close(self) -> None:
        """Nothing to let go of."""

    # Called by whoever begins to wait for a write.

    def nudge(self, _loop: asyncio.AbstractEventLoop) -> None:
        self._ring()

    def help(self) -> None:
        self._ring()

    # The I/O thread.

    def _refuse_dead(self) -> None:
        if self._process.dead:
            raise Crashed

    def _soon(self, action: Callable[[T], object], arg: T) -> None:
        """Now, or when the code that asks for it gets there."""
        if self._world.lag:
            self._process.at(0, action, arg)
        else:
            action(arg)

    def _latency(self) -> int:
        return self._world.rng.choice(LATENCIES)

    def _ring(self) -> None:
        if not self._rung:
            self._rung = True
            self._process.at(0, self._serve)

    def _serve(self) -> None:
        """Send the next batch, if none is on its way."""
        self._rung = False
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
        if self._world.gentle and any(_renews(sent.write) for sent in batch):
            fate = None  # two lost renewals in a row are a lapsed lease, which is not gentle
        self._in_flight = True
        self._send(batch, fate)

    def _send(self, batch: list[Sent], fate: Fault | None) -> None:
        world, process, latency = self._world, self._process, self._latency()
        if world.trace is not None:
            says = "" if fate is None else f"  ({fate})"
            world.note(process, f"sends {', '.join(describe(sent.write) for sent in batch)}{says}")
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

    def _arrive(self, batch: list[Sent], answered: bool) -> None:
        """At the store, whether or not the sender still lives. Its answer may have nobody to go to."""
        world = self._world
        self._boundary()
        if world.is_down():
            if answered:
                self._process.at(NOTICED, self._lost, batch)
            return
        world.sender = self._process
        answers = world.book.commit([sent.write for sent in batch])
        world.sender = None
        self._boundary()
        if answered:
            self._process.at(self._latency(), self._back, batch, answers)

    def _boundary(self) -> None:
        """The sender may fail while its request is under way: before it is applied, and after."""
        process = self._process
        if process.dead or process.frozen_until > self._world.now:
            return
        fault = self._world.faults.next(sending=None)
        if fault is not None:
            self._world.strike(fault, process)

    def _back(self, batch: list[Sent], answers: list[Answer]) -> None:
        """As `Batcher._answer`."""
        results: list[tuple[Sent, Answer | None, Exception | None]] = [
            (sent, answer, None) for sent, answer in zip(batch, answers, strict=True)
        ]
        for sent, answer in zip(batch, answers, strict=True):
            self.notice(sent.write, answer)
            if sent.abandoned and (release := release_for(sent.write, answer)) is not None:
                self._queue.push(Sent(release, self.mutex, self))
        if self._queue or self._upkeep.watching:
            known = {Ref(sent.write.scope, sent.write.key): a for sent, a in zip(batch, answers, strict=True)}
            tell([(watch, seen, None) for watch, seen in self._upkeep.told(known)])
            results += [(sent, answer, None) for sent, answer in self._queue.refused_by(known)]
        tell(results)
        self._next()

    def _lost(self, batch: list[Sent]) -> None:
        tell([(sent, None, StoreUnavailable("the connection broke")) for sent in batch])
        self._next()

    def _next(self) -> None:
        self._in_flight = False
        if self._queue:
            self._ring()

    def _answer_call(self, call: Call[object]) -> None:
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
        tell([(call, result, error)])

    def _tick_by(self, moment: float) -> None:
        if moment < self._tick_at:
            self._tick_at = moment
            self._process.at(self._process.span(moment - self.monotonic()) + 1, self._tick, moment)

    def _tick(self, moment: float) -> None:
        """What is due beside batches: renewals, naps and looks at the keys of others."""
        if moment != self._tick_at:
            return
        self._tick_at = math.inf
        now = self.monotonic()
        for kept in self._upkeep.renewals(now):
            kept.renewal = sent = Sent(kept.move(write_id()), self.mutex, self)
            self._queue.append(sent)
            self._ring()
        tell([(nap, None, None) for nap in self._upkeep.rested(now)])
        due = self._upkeep.due(now)
        if due:
            self._look(due, now)
        next_at = self._upkeep.next_at()
        if next_at < math.inf:
            self._tick_by(next_at)

    def _look(self, due: list[Watch], now: float) -> None:
        """As `Batcher._poll`."""
        if self._world.is_down():
            tell([(watch, None, StoreUnavailable("the store is down")) for watch in due])
            return
        refs = list(dict.fromkeys(watch.ref for watch in due))
        reading = self.store.read(refs)
        seen = {ref: self._seen(entry, reading.now) for ref, entry in zip(refs, reading.entries, strict=True)}
        tell([(watch, found, None) for watch, found in self._upkeep.judge(due, seen, now)])

    def _seen(self, entry: Entry | None, now: int) -> Seen:
        held = entry is not None and entry.status is Status.IN_PROGRESS
        return Seen(entry, now, dead=held and entry is not None and self.proved_dead(entry.holder))


def _renews(write: Write) -> bool:
    return isinstance(write, Move) and write.verb is Verb.RENEW


def describe(write: Write) -> str:
    match write:
        case Begin():
            return f"begin {write.key}" + (f" (v{write.dead} is dead)" if write.dead else "")
        case Move():
            return f"{write.verb} {write.key} v{write.version}"
        case _:
            return f"append {write.key} v{write.version} #{write.seq}"
