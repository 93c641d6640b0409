"""Faults and their schedule. A boundary is any point between two steps of a process; the plan is asked at each."""

from __future__ import annotations

import enum
import math
import random
from collections.abc import Mapping, Sequence
from typing import Protocol


class Fault(enum.StrEnum):
    CRASH = "crash"
    FREEZE = "freeze"
    CANCEL = "cancel"
    LOSE_REQUEST = "lose request"
    LOSE_ANSWER = "lose answer"
    HANG = "hang"  # the request is lost, without an error for longer than any timeout
    LINGER = "linger"  # given up by the sender, but it arrives later all the same
    DUPLICATE = "duplicate"  # arrives twice, the second time much later
    OUTAGE = "outage"
    CLOCK_FORWARD = "clock forward"
    CLOCK_BACK = "clock back"


# These befall one request on its way; the others befall a process or the store.
NETWORK = frozenset({Fault.LOSE_REQUEST, Fault.LOSE_ANSWER, Fault.HANG, Fault.LINGER, Fault.DUPLICATE})
# A process that retries never notices these.
GENTLE = frozenset({Fault.LOSE_REQUEST, Fault.LOSE_ANSWER})


class Faults(Protocol):
    """A plan of faults, asked at every boundary; `sending` names the process whose request is about to be sent."""

    count: int

    def next(self, *, sending: int | None) -> Fault | None: ...
    def stop(self) -> None: ...


class Storm:
    """Faults drawn at random from those that this seed allows, with random gaps of `gap` boundaries on average.

    A gentle one never loses two of three consecutive requests of a process, so that a caller that repeats gets through
    in time.
    """

    def __init__(self, rng: random.Random, kinds: Sequence[Fault], gap: float, *, gentle: bool) -> None:
        self.count = 0
        self._rng = rng
        self._gap = gap
        self._anywhere = [kind for kind in kinds if kind not in NETWORK]
        self._sending = list(kinds)
        self._mercy: dict[int, int] | None = {} if gentle else None
        self._next: float = math.inf
        self._draw()

    def next(self, *, sending: int | None) -> Fault | None:
        self.count += 1
        if self._mercy is not None and sending is not None and self._mercy.get(sending, 0):
            self._mercy[sending] -= 1
            return None
        if self.count < self._next:
            return None
        kinds = self._anywhere if sending is None else self._sending
        if not kinds:
            return None
        self._draw()
        if self._mercy is not None and sending is not None:
            self._mercy[sending] = 2
        return self._rng.choice(kinds)

    def stop(self) -> None:
        self._next = math.inf

    def _draw(self) -> None:
        self._next = self.count + 1 + int(self._rng.expovariate(1 / self._gap))


class Script:
    """Exactly these faults, each at the boundary of that number."""

    def __init__(self, plan: Mapping[int, Fault]) -> None:
        self.count = 0
        # The boundaries at which a request left.
        self.sends: list[int] = []
        self._plan: Mapping[int, Fault] | None = plan

    def next(self, *, sending: int | None) -> Fault | None:
        if self._plan is None:
            return None
        self.count += 1
        if sending is not None:
            self.sends.append(self.count)
        fault = self._plan.get(self.count)
        return None if fault in NETWORK and sending is None else fault

    def stop(self) -> None:
        self._plan = None
