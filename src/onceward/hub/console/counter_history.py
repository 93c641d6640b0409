"""Counters of the hub over the last hour, for sparklines: the totals of all workers, sampled by each of them.

A worker keeps its samples in memory. After a restart, the history is empty; `/metrics` is for longer ones.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

SAMPLE_SECONDS = 15.0
SAMPLES_MAX = 240
# Points of a sparkline. Several samples share one.
POINTS = 40


@dataclass(frozen=True, slots=True)
class CounterView:
    """A counter: its total since the hub has started, and its increases in equal steps, oldest first."""

    total: int
    steps: tuple[int, ...]
    last_hour: int


class CounterHistory:
    """Samples of counters.

    Args:
        read: Returns the current totals by name. It may take some milliseconds.
        clock: The monotonic clock.
    """

    def __init__(self, read: Callable[[], Mapping[str, float]], clock: Callable[[], float] = time.monotonic) -> None:
        self._read = read
        self._clock = clock
        self._samples: deque[tuple[float, Mapping[str, float]]] = deque(maxlen=SAMPLES_MAX)

    async def run(self) -> None:
        """Sample periodically until this is cancelled. Take the first sample before."""
        while True:
            await asyncio.sleep(SAMPLE_SECONDS)
            await asyncio.to_thread(self.sample)

    def sample(self) -> None:
        self._samples.append((self._clock(), self._read()))

    def view(self, name: str) -> CounterView:
        """Return a counter as it is now, with its history.

        Args:
            name: The name of the counter.

        Returns:
            The view.
        """
        return self.views([name])[name]

    def views(self, names: list[str]) -> dict[str, CounterView]:
        """Return several counters as they are now, from one read."""
        now, totals = self._clock(), self._read()
        samples = [*self._samples, (now, totals)]
        found = {}
        for name in names:
            values = [int(sample.get(name, 0)) for _, sample in samples]
            increases = [max(0, after - before) for before, after in itertools.pairwise(values)]
            found[name] = CounterView(values[-1], _in_steps(increases), sum(increases))
        return found


def _in_steps(increases: list[int]) -> tuple[int, ...]:
    """Add up neighbours, so that at most `POINTS` numbers are left."""
    size = max(1, -(-len(increases) // POINTS))
    # The last step is whole, and the first may be short: the present is on the right.
    first = len(increases) % size
    bounds = [0] * bool(first) + list(range(first, len(increases), size))
    return tuple(sum(increases[start : start + (first if start == 0 and first else size)]) for start in bounds)
