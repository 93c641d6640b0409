"""Pinned clock: its time changes only when a test changes it."""

from __future__ import annotations

SECOND = 1_000_000
# The last digits are not zero, so that the tests detect a store that rounds or drops microseconds.
START = 1_750_000_000_123_457


class PinnedClock:
    """Clock that a test sets by hand. Pass it to a store as `clock=`.

    >>> clock = PinnedClock()
    >>> clock.advance(1.5)
    >>> clock() - START
    1500000

    Args:
        now: The time at the start, in microseconds since 1970.
    """

    def __init__(self, now: int = START) -> None:
        self._now = now

    def __call__(self) -> int:
        return self._now

    def advance(self, seconds: float) -> None:
        """Move the clock forward, or back as when a clock is corrected.

        Args:
            seconds: The time to add. A negative number moves the clock back.
        """
        self._now += round(seconds * SECOND)

    def set(self, now: int) -> None:
        """Set the clock.

        Args:
            now: The new time, in microseconds since 1970.
        """
        self._now = now
