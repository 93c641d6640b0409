"""Failures of periodic work in a row: the first is logged, then fewer and fewer, and the end of the streak once.

A job that runs every second would otherwise fill the log while a database is down, and nobody would see when it works
again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

# The time from one line to the next while the work fails: it doubles from the first of these to the second.
LINE_SECONDS_MIN = 60.0
LINE_SECONDS_MAX = 3600.0


@dataclass(frozen=True, slots=True)
class FailureStreakEnd:
    """The length of a streak of failures that has ended."""

    failure_count: int
    seconds: float


class FailureStreak:
    """Failures in a row of one periodic work. Not thread-safe: one thread or task does the work.

    Args:
        clock: A clock that only goes forward, in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._kind: type[Exception] | None = None
        self._count = 0
        self._since = 0.0
        self._next_at = 0.0
        self._interval = LINE_SECONDS_MIN

    def failed(self, error: Exception) -> int | None:
        """Note a failure.

        Args:
            error: The failure. A failure of another kind than the last one is always logged.

        Returns:
            The number of failures since the streak began, or None if this one should not be logged.
        """
        now = self._clock()
        if self._count == 0:
            self._since, self._interval = now, LINE_SECONDS_MIN
        self._count += 1
        if type(error) is self._kind and now < self._next_at:
            return None
        if type(error) is self._kind:
            self._interval = min(self._interval * 2, LINE_SECONDS_MAX)
        self._kind = type(error)
        self._next_at = now + self._interval
        return self._count

    def succeeded(self) -> FailureStreakEnd | None:
        """Note a success.

        Returns:
            The streak that has ended, or None if there was none.
        """
        if self._count == 0:
            return None
        ended = FailureStreakEnd(self._count, round(self._clock() - self._since, 3))
        self._count, self._kind = 0, None
        return ended
