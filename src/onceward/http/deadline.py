"""What is left of a deadline, in the form in which an HTTP client asks for its timeouts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

# A timeout of 0 means "do not wait at all" to a socket, which is another thing than "time is up".
TIMEOUT_SECONDS_MIN = 0.001


class Timeouts(Mapping[str, float | None]):
    """The caller's timeouts, none longer than what is left until `end`, at the moment at which each is asked for.

    A fixed copy would not do: connecting, writing and reading each could take all of it. With `end` moved to infinity
    the caller's own are left, for an answer whose body the caller reads.
    """

    def __init__(self, own: Mapping[str, float | None], clock: Callable[[], float], end: float) -> None:
        self._own = {"connect": None, "read": None, "write": None, "pool": None, **own}
        self._clock = clock
        self.end = end

    def __getitem__(self, name: str) -> float | None:
        own = self._own[name]
        if math.isinf(self.end):
            return own
        left = max(TIMEOUT_SECONDS_MIN, self.end - self._clock())
        return left if own is None else min(own, left)

    def __iter__(self) -> Iterator[str]:
        return iter(self._own)

    def __len__(self) -> int:
        return len(self._own)

    def over(self) -> bool:
        """A timeout bounds one silence; what trickles in without one is bounded by this."""
        return self._clock() >= self.end
