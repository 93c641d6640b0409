"""Load generator: callers that repeat one call for a given time. Standard library only: peers use it too."""

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

# Keys that each caller replays in turn. With one key for all callers, one write would serve them all.
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
    """Return a function for the key of a caller's n-th call: a settled key, or a random one, as real clients send."""
    if mode is Mode.REPLAY:
        return lambda caller, number: f"replay-{caller}-{number % REPLAY_KEYS}"
    return lambda _caller, _number: f"{random.getrandbits(128):032x}"


# Keys that are settled before the measurement.
SETTLED = [f"replay-{caller}-{number}" for caller in range(CALLERS_MAX) for number in range(REPLAY_KEYS)]


@dataclass(frozen=True, slots=True)
class Load:
    calls: int
    seconds: float

    @property
    def rate(self) -> float:
        return self.calls / self.seconds


# The threads are reused by all measurements, because a library may keep a connection open for each thread.
_pool = ThreadPoolExecutor(CALLERS_MAX, "caller")


def in_parallel(call: Callable[[str], object], keys: list[str]) -> None:
    """Call once for each key, from all threads."""
    list(_pool.map(call, keys))


def with_threads(call: Callable[[str], object], callers: int, seconds: float, name: Callable[[int, int], str]) -> Load:
    """Call in a loop from `callers` threads until the time is up, at least once each, and wait for the last calls."""

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

    def start_at_once(caller: int) -> int:
        start.wait()
        return work(caller, time.perf_counter() + seconds)

    running = [_pool.submit(start_at_once, caller) for caller in range(callers)]
    start.wait()
    began = time.perf_counter()
    wait(running)
    took = time.perf_counter() - began
    return Load(sum(one.result() for one in running), took)


async def with_tasks(
    call: Callable[[str], Awaitable[object]], callers: int, seconds: float, name: Callable[[int, int], str]
) -> Load:
    """Do the same as `with_threads` with tasks of one event loop."""
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
    """Counter of effects that ran, to prove that a fast contestant is also correct."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._first = 0

    def __call__(self) -> dict[str, object]:
        return {"paid": True, "number": next(self._numbers)}

    def forget(self) -> None:
        """Start to count from zero."""
        self._first = next(self._numbers) + 1

    def check(self, mode: Mode, calls: int) -> None:
        """Raise RuntimeError unless each fresh call ran its effect once and no replay ran it."""
        ran = next(self._numbers) - self._first
        wanted = calls if mode is Mode.FRESH else 0
        if ran != wanted:
            raise RuntimeError(f"{calls} {mode} calls ran {ran} effects, expected {wanted}")
