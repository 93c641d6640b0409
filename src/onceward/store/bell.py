"""What the store's thread sleeps by."""

from __future__ import annotations

import math
import threading
import time


class Bell:
    """One sleeper. The batcher's mutex guards everything here but the sleep itself."""

    __slots__ = ("_lock", "_until", "called")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()
        self._until = -math.inf  # when the sleeper wakes by itself; in the past while it is awake
        self.called = False  # there is something to do at once

    def ring(self, moment: float) -> None:
        """Have the sleeper awake at this moment (at once: minus infinity)."""
        if moment == -math.inf:
            self.called = True
        if moment < self._until:
            self._until = -math.inf
            self._lock.release()

    def lie_down(self, until: float) -> float:
        """Announce a sleep; gives how many seconds it lasts."""
        self._until = until
        return max(0.0, until - time.monotonic())

    def sleep(self, seconds: float, mutex: threading.Lock) -> bool:
        """Until somebody rings, or so long; true when somebody did. Without the mutex."""
        if self._lock.acquire(timeout=seconds):
            return True
        with mutex:
            was_rung = self._until == -math.inf  # between the timeout and here
            if was_rung:
                self._lock.acquire()
            self._until = -math.inf
            return was_rung
