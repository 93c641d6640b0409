"""Limits on connections and request heads, checked before anybody is authenticated.

Theory of operation. A process has a fixed number of file descriptors, and each connection takes one. Up to
`max_connections` are served. A connection above that is surplus: it may still ask for `/healthz`, everything else gets
503. There are few places for surplus connections, and a new one takes the place of the oldest. So a crowd can fill the
hub, but a health check that arrives is always read.
"""

from __future__ import annotations

import logging
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from onceward.http import problem
from onceward.hub.config import Config
from onceward.hub.metrics import http_counts

# The request line, all header lines, their line ends and the empty line.
HEAD_BYTES_MAX = 64 * 1024
HEADER_LINES_MAX = 100
CONNECTIONS_MAX = 1000
HEALTH_PATH = b"/healthz"

HEAD_TOO_LARGE = problem.problem(
    431, f"The head of a request is limited to {HEAD_BYTES_MAX} bytes and {HEADER_LINES_MAX} header lines"
)
TOO_MANY_CONNECTIONS = problem.problem(
    503, "The hub has as many connections as it can serve. Retry in a moment.", retry_after=problem.STORE_RETRY_SECONDS
)
TOO_MANY_STREAMS_RETRY_SECONDS = 5

# A refusal is logged once in this time for each reason; the next line says how many there were in between.
_LOG_SECONDS = 10.0
# Surplus connections take one of this many descriptors. The rest are for files and for other servers.
_SURPLUS_SHARE = 32
_SURPLUS_MIN, _SURPLUS_MAX = 4, 64

_log = logging.getLogger("onceward.hub")


class Refusals:
    """Counts refusals of this process, and logs them at a bounded rate."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._logged_at: dict[str, float] = {}
        self._unlogged: dict[str, int] = {}

    def add(self, reason: str, client: str | None) -> None:
        """`reason` is one of a few words: a label of the metric."""
        http_counts().refused(reason)
        now = self._clock()
        count = self._unlogged.get(reason, 0) + 1
        if now - self._logged_at.get(reason, -_LOG_SECONDS) < _LOG_SECONDS:
            self._unlogged[reason] = count
            return
        self._logged_at[reason], self._unlogged[reason] = now, 0
        _log.warning("connection_refused", extra={"reason": reason, "client": client, "count": count})


class Surplus(Protocol):
    """A connection that can be closed to make room."""

    def make_room(self) -> None: ...


@dataclass(slots=True)
class ConnectionLimits:
    """The limits of one serving process, and its surplus connections, oldest first."""

    head_seconds: float = 10.0
    max_connections: int = CONNECTIONS_MAX
    surplus_max: int = _SURPLUS_MAX
    refusals: Refusals = field(default_factory=Refusals)
    _surplus: dict[Surplus, None] = field(default_factory=dict)

    def enter(self, connection: Surplus) -> None:
        """A surplus connection arrives; the oldest leaves if there is no place for both."""
        self._surplus[connection] = None
        if len(self._surplus) > self.surplus_max:
            oldest = next(iter(self._surplus))
            del self._surplus[oldest]
            oldest.make_room()

    def leave(self, connection: Surplus) -> None:
        """It is closed, or has a place among the others."""
        self._surplus.pop(connection, None)


def limits_of(config: Config) -> ConnectionLimits:
    """The limits of this process, by its settings and its file descriptors."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if descriptors == resource.RLIM_INFINITY:
        descriptors = 1_000_000
    most = descriptors * 3 // 4
    wanted = config.hub.max_connections or min(CONNECTIONS_MAX, most)
    if wanted > most:
        _log.warning(
            "hub.max_connections is %d, and this process may open %d files: expected at most %d, three quarters of"
            " them; raise the limit (ulimit -n, LimitNOFILE=) or lower the setting",
            wanted,
            descriptors,
            most,
        )
    surplus = min(_SURPLUS_MAX, max(_SURPLUS_MIN, descriptors // _SURPLUS_SHARE))
    return ConnectionLimits(config.hub.head_seconds, wanted, surplus)
