"""Callers that do one thing as often as they can for a while. Standard library only: the peers' processes use it too."""

from __future__ import annotations

import asyncio
import enum
import gc
import itertools
import random
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass

# Each caller replays so many keys of its own in turn: one key for all would be answered from a single write.
REPLAY_KEYS = 2


class Mode(enum.StrEnum):
    FRESH = "fresh"
    REPLAY = "replay"


@dataclass(frozen=True, slots=True)
class Scenario:
    mode: Mode
    callers: int

    def __str__(self) -> str:
        return f"{self.mode}, {self.callers} caller{'s' if self.callers > 1 else ''}"


SCENARIOS = (
    Scenario(Mode.FRESH, 1),
    Scenario(Mode.FRESH, 64),
    Scenario(Mode.REPLAY, 1),
    Scenario(Mode.REPLAY, 64),
)
CALLERS_MAX = max(scenario.callers for scenario in SCENARIOS)


def namer(mode: Mode) -> Callable[[int, int], str]:
    """The key of a caller's n-th call: one of those settled beforehand, or as random as the keys of real clients are."""
    if mode is Mode.REPLAY:
        return lambda caller, number: f"replay-{caller}-{number % REPLAY_KEYS}"
    return lambda _caller, _number: f"{random.getrandbits(128):032x}"


# The keys that are settled beforehand.
SETTLED = [f"replay-{caller}-{number}" for caller in range(CALLERS_MAX) for number in range(REPLAY_KEYS)]


@dataclass(frozen=True, slots=True)
class Load:
    calls: int
    seconds: float

    @property
    def rate(self) -> float:
        return self.calls / self.seconds


# Threads stay between measurements: a library may keep a connection for each thread it has seen.
_crew = ThreadPoolExecutor(CALLERS_MAX, "caller")


def together(call: Callable[[str], object], keys: list[str]) -> None:
    """Call once for each key, from all threads."""
    list(_crew.map(call, keys))


def with_threads(call: Callable[[str], object], callers: int, seconds: float, name: Callable[[int, int], str]) -> Load:
    """So many threads, each calling in a loop until the time is up, once at least; the last call is waited for."""

    def work(caller: int, end: float) -> int:
        number = 0
        while not number or time.perf_counter() < end:
            call(name(caller, number))
            number += 1
        return number

    gc.collect()
    if callers == 1:
        began = time.perf_counter()
        calls = work(0, began + seconds)
        return Load(calls, time.perf_counter() - began)

    start = threading.Barrier(callers + 1)

    def start_together(caller: int) -> int:
        start.wait()
        return work(caller, time.perf_counter() + seconds)

    running = [_crew.submit(start_together, caller) for caller in range(callers)]
    start.wait()
    began = time.perf_counter()
    wait(running)
    took = time.perf_counter() - began
    return Load(sum(one.result() for one in running), took)


async def with_tasks(
    call: Callable[[str], Awaitable[object]], callers: int, seconds: float, name: Callable[[int, int], str]
) -> Load:
    """As `with_threads`, with tasks of one event loop."""
    gc.collect()
    began = time.perf_counter()
    end = began + seconds

    async def work(caller: int) -> int:
        number = 0
        while not number or time.perf_counter() < end:
            await call(name(caller, number))
            number += 1
        return number

    counts = await asyncio.gather(*[work(caller) for caller in range(callers)])
    return Load(sum(counts), time.perf_counter() - began)


class Effects:
    """Counts how often the effect really ran, so that a fast contestant is also a right one."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._first = 0

    def __call__(self) -> dict[str, object]:
        return {"paid": True, "number": next(self._numbers)}

    def forget(self) -> None:
        """Count from here."""
        self._first = next(self._numbers) + 1

    def check(self, mode: Mode, calls: int) -> None:
        """A fresh call runs its effect once, a replay never."""
        ran = next(self._numbers) - self._first
        wanted = calls if mode is Mode.FRESH else 0
        if ran != wanted:
            raise RuntimeError(f"{calls} {mode} calls ran {ran} effects, not {wanted}")
