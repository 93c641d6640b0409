"""Simulated time, and the events in it. Events run one by one in the order of their time."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

from tests.simulation.effects import Outside
from tests.simulation.faults import Fault, Faults
from tests.simulation.store_checker import StoreChecker
from tests.simulation.violation import Violation

from onceward.core.claim import SECOND
from onceward.store.memory import MemoryStore

if TYPE_CHECKING:
    from tests.simulation.process import Process

MILLISECOND = 1_000
# The store's clock shows this when the world begins.
START = 1_750_000_000_000_000
# The store's clock is never set back by more than this in all: leases would last as much longer.
BACK = 6 * SECOND
# A world that is still busy after this much of its own time goes round in circles.
END = 3_600 * SECOND


class World:
    """One store, some processes, one sequence of events.

    Moments are whole microseconds of true time, which nobody inside can see: the store has a clock that jumps, each
    process one of its own.
    """

    def __init__(self, rng: random.Random, faults: Faults, *, trace: bool = False) -> None:
        self.rng = rng
        self.faults = faults
        self.now = 0
        # How far the code that runs right now is ahead of `now`, because it has blocked its thread for a while.
        self.lag = 0
        self.trace: list[str] | None = [] if trace else None
        self.failure: Violation | None = None
        self.set_back = 0
        # Whether nothing goes wrong that a patient caller would notice, and whether anything goes wrong any more.
        self.gentle = False
        self.at_rest = False
        self.down_until = 0
        self.clock_offset = START
        self.sender: Process | None = None
        self.store = MemoryStore(self.store_clock)
        self.checker = StoreChecker(self)
        self.outside = Outside(self)
        self.processes: list[Process] = []
        self.open_callers = 0
        self._events: list[tuple[int, int, Process | None, Callable[..., object], tuple[Any, ...]]] = []
        self._order = 0

    # Clocks.

    def true_store_clock(self) -> int:
        return self.now + self.clock_offset

    def store_clock(self) -> int:
        """The clock of the store; a planted bug may replace it."""
        return self.true_store_clock()

    # Events.

    def at(self, delay: int, owner: Process | None, action: Callable[..., object], *args: object) -> None:
        """Run this after a delay. An event of a process waits while it is frozen, and is dropped when it dies."""
        self._order += 1
        heapq.heappush(self._events, (self.now + self.lag + delay, self._order, owner, action, args))

    def run(self, until: int = END) -> None:
        """Run all events up to this time."""
        events = self._events
        faults = self.faults
        while events and events[0][0] <= until:
            moment, order, owner, action, args = heapq.heappop(events)
            self.now = moment
            if owner is not None:
                if not owner.dead and owner.frozen_until <= moment:
                    fault = faults.next(sending=None)
                    if fault is not None:
                        self.strike(fault, owner)
                if owner.dead:
                    continue
                if owner.frozen_until > moment:
                    heapq.heappush(events, (owner.frozen_until, order, owner, action, args))
                    continue
            self.lag = 0
            action(*args)
            if self.failure is not None:
                raise self.failure
        self.lag = 0
        if events and until >= END:
            self.fail("the world never comes to rest")
        self.now = max(self.now, until if until < END else 0)

    def block(self, span: int) -> None:
        """Count the running code as blocking its thread for this long."""
        self.lag += span

    # Faults.

    def strike(self, fault: Fault, process: Process) -> None:
        """Apply a fault to a process or the store."""
        rng = self.rng
        match fault:
            case Fault.CRASH:
                self.note(process, "crashes")
                process.crash()
            case Fault.FREEZE:
                span = rng.choice((SECOND // 2, 4 * SECOND, 9 * SECOND, 40 * SECOND))
                process.frozen_until = max(process.frozen_until, self.now + span)
                self.note(process, f"is frozen for {span / SECOND:g} s")
            case Fault.CANCEL:
                process.cancel_someone(rng)
            case Fault.OUTAGE:
                span = rng.choice((SECOND // 5, 2 * SECOND, 8 * SECOND))
                self.down_until = max(self.down_until, self.now + span)
                self.note(None, f"the store is down for {span / SECOND:g} s")
            case Fault.CLOCK_FORWARD:
                span = rng.choice((SECOND, 4 * SECOND, 15 * SECOND, 86_500 * SECOND))
                self.clock_offset += span
                self.note(None, f"the store's clock jumps {span / SECOND:g} s ahead")
            case Fault.CLOCK_BACK:
                span = min(rng.choice((MILLISECOND, SECOND // 2, 2 * SECOND)), BACK - self.set_back)
                self.clock_offset -= span
                self.set_back += span
                self.note(None, f"the store's clock is set {span / SECOND:g} s back")
            case _:
                raise AssertionError(fault)

    def is_down(self) -> bool:
        return self.now < self.down_until

    def is_dead(self, holder: str) -> bool:
        return any(process.dead for process in self.processes if process.holder == holder)

    # Reporting.

    def note(self, process: Process | None, text: str) -> None:
        if self.trace is not None:
            who = "world" if process is None else process.name
            self.trace.append(f"{(self.now + self.lag) / SECOND:12.6f}  {who:<6} {text}")

    def fail(self, message: str) -> NoReturn:
        """Report a broken guarantee. Code that catches everything cannot hide it: the world stops after this event."""
        if self.failure is None:
            self.failure = Violation(message)
            self.note(None, f"BROKEN: {message}")
        raise self.failure
