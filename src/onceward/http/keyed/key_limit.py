"""The limit of new keys: how many keys each principal may create per minute, counted in this process.

Every new key is a row in the store that stays for a day, so a client that invents keys can fill it. Retries of a key
that exists are never limited.
"""

from __future__ import annotations

import ipaddress
import math
import threading
import time
from collections import deque
from collections.abc import Callable

from onceward.http.keyed.principal import ANONYMOUS, SESSION_SCOPE, KeyPrincipal

WINDOW_SECONDS = 60.0
# The prefix of an IPv6 address that belongs to one customer.
_PREFIX_BITS = 64
# After this many new keys, principals without a key in the last minute are removed from memory.
_SWEEP_KEYS = 1024


class KeyLimit:
    """The times of the new keys of the last minute, by principal and limit."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._times: dict[tuple[str, int], deque[float]] = {}
        self._until_sweep = _SWEEP_KEYS
        # WSGI requests run on several threads.
        self._lock = threading.Lock()

    def take(self, counted: str, limit: int) -> int:
        """Count a new key. Return 0, or if the limit is reached, the seconds until the next key is allowed."""
        now = self._clock()
        with self._lock:
            times = self._times.setdefault((counted, limit), deque())
            while times and times[0] <= now - WINDOW_SECONDS:
                times.popleft()
            if len(times) >= limit:
                return max(1, math.ceil(times[0] + WINDOW_SECONDS - now))
            times.append(now)
            self._until_sweep -= 1
            if self._until_sweep <= 0:
                self._sweep(now)
        return 0

    def give_back(self, counted: str, limit: int) -> None:
        """Take back the last count: the key was not new."""
        with self._lock:
            times = self._times.get((counted, limit))
            if times:
                times.pop()

    def _sweep(self, now: float) -> None:
        self._until_sweep = _SWEEP_KEYS
        gone = [name for name, times in self._times.items() if not times or times[-1] <= now - WINDOW_SECONDS]
        for name in gone:
            del self._times[name]


def counted_as(principal: KeyPrincipal, address: str, *, by_address: bool) -> str:
    """Return the name under which the new keys of a request are counted.

    Callers that anyone can be (without credentials, or with any cookie) and senders of webhooks are counted by their
    address.
    """
    if by_address or principal.scope == ANONYMOUS.scope or principal.scope.startswith(SESSION_SCOPE):
        return "address:" + _network(address)
    return principal.scope


def _network(address: str) -> str:
    """Return an IPv4 address, or the network of an IPv6 address: a customer has all addresses of a /64."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if found.version == 4 or found.ipv4_mapped is not None:  # noqa: PLR2004  # the version of the protocol
        return str(getattr(found, "ipv4_mapped", None) or found)
    return str(ipaddress.ip_network((found, _PREFIX_BITS), strict=False))
