"""Wakeup for the I/O thread: a condition with one waiter and a deadline."""

from __future__ import annotations

import math
import threading
import time


class Wakeup:
    """A condition for one sleeping thread. The batcher's mutex guards everything but the sleep itself."""

    __slots__ = ("_lock", "_until", "called")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()
        self._until = -math.inf  # the end of the sleep; minus infinity while the thread is awake
        self.called = False  # whether there is work to do at once

    def wake_at(self, deadline: float) -> None:
        """Make sure that the thread is awake at this time. Minus infinity means at once."""
        if deadline == -math.inf:
            self.called = True
        if deadline < self._until:
            self._until = -math.inf
            self._lock.release()

    def start_sleep(self, until: float) -> float:
        """Announce a sleep until this time, and return its length in seconds."""
        self._until = until
        return max(0.0, until - time.monotonic())

    def sleep(self, seconds: float, mutex: threading.Lock) -> bool:
        """Sleep for at most this time; return whether the thread was woken. The caller does not hold the mutex."""
        if self._lock.acquire(timeout=seconds):
            return True
        with mutex:
            was_woken = self._until == -math.inf  # between the timeout and here
            if was_woken:
                self._lock.acquire()
            self._until = -math.inf
            return was_woken
