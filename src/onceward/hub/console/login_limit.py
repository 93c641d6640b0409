"""Limit of failed logins for each client address, in one process. A token cannot be guessed; this keeps the log short."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

from onceward.errors import TooManyRequests

FAILURES_MAX = 10
WINDOW_SECONDS = 60.0
# Addresses that are remembered. The oldest one is forgotten first.
_ADDRESSES_MAX = 1000


class LoginLimit:
    """Failed logins of the last minute, by client address."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failures: OrderedDict[str, list[float]] = OrderedDict()

    def check(self, address: str) -> None:
        """Raise `TooManyRequests` if this address has failed too often."""
        now = self._clock()
        recent = [at for at in self._failures.get(address, ()) if now - at < WINDOW_SECONDS]
        if len(recent) >= FAILURES_MAX:
            wait = recent[0] + WINDOW_SECONDS - now
            raise TooManyRequests("too many failed logins from this address; wait a minute and try again", wait)

    def failed(self, address: str) -> None:
        """Count a failed login."""
        now = self._clock()
        recent = [at for at in self._failures.pop(address, ()) if now - at < WINDOW_SECONDS]
        self._failures[address] = [*recent, now][-FAILURES_MAX:]
        while len(self._failures) > _ADDRESSES_MAX:
            self._failures.popitem(last=False)
