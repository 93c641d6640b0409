"""Time that stands still until a test moves it."""

from __future__ import annotations

SECOND = 1_000_000
# Odd to the last digit, so that a store which rounds or drops microseconds is found out.
START = 1_750_000_000_123_457


class PinnedClock:
    """Give it as `clock=` to a store; it answers in microseconds since 1970.

    >>> clock = PinnedClock()
    >>> clock.advance(1.5)
    >>> clock() - START
    1500000
    """

    def __init__(self, now: int = START) -> None:
        self._now = now

    def __call__(self) -> int:
        return self._now

    def advance(self, seconds: float) -> None:
        """Let time pass; a negative span takes it back, as a clock that is corrected does."""
        self._now += round(seconds * SECOND)

    def set(self, now: int) -> None:
        """Make it this moment, in microseconds since 1970."""
        self._now = now
