"""Limits on connections and request heads, checked before authentication.

Theory of operation. A process has a fixed number of file descriptors, and each connection takes one. Up to
`max_connections` are served. A connection above that is surplus: it may still request `/healthz`, but everything else
gets 503. The number of surplus connections is small, and a new one replaces the oldest. Clients can fill the hub,
but a health check that arrives is always read. There is one exception: if more connections arrive at the same moment
than descriptors are left, the event loop closes some of them unread.
"""

from __future__ import annotations

import logging
import resource
from dataclasses import dataclass, field
from typing import Protocol

from onceward.core.log_event import log_event
from onceward.http import problem
from onceward.hub.config.config import Config
from onceward.hub.web.refusals import Refusals

# Includes the request line, all header lines, their line ends and the empty line.
HEAD_BYTES_MAX = 64 * 1024
HEADER_LINES_MAX = 100
CONNECTIONS_MAX = 1000
HEALTH_PATH = b"/healthz"

HEAD_TOO_LARGE = problem.problem(
    431, f"A request head is limited to {HEAD_BYTES_MAX} bytes and {HEADER_LINES_MAX} header lines."
)
TOO_MANY_CONNECTIONS = problem.problem(
    503, "The hub has reached its limit of connections. Retry in a moment.", retry_after=problem.STORE_RETRY_SECONDS
)
TOO_MANY_STREAMS_RETRY_SECONDS = 5

# One in this many descriptors is for surplus connections. The rest are for files and connections to other servers.
_SURPLUS_SHARE = 32
_SURPLUS_MIN, _SURPLUS_MAX = 4, 64

_log = logging.getLogger("onceward.hub")


class SurplusConnection(Protocol):
    """A connection that can be closed to make room."""

    def close_surplus(self) -> None: ...


@dataclass(slots=True)
class ConnectionLimits:
    """The limits of one serving process, and its surplus connections, oldest first."""

    head_seconds: float = 10.0
    max_connections: int = CONNECTIONS_MAX
    surplus_max: int = _SURPLUS_MAX
    refusals: Refusals = field(default_factory=Refusals)
    _surplus: dict[SurplusConnection, None] = field(default_factory=dict)

    def enter(self, connection: SurplusConnection) -> None:
        """Add a surplus connection, and close the oldest if there are too many."""
        self._surplus[connection] = None
        if len(self._surplus) > self.surplus_max:
            oldest = next(iter(self._surplus))
            del self._surplus[oldest]
            oldest.close_surplus()

    def leave(self, connection: SurplusConnection) -> None:
        """Remove a connection that was closed or is no longer surplus."""
        self._surplus.pop(connection, None)


def limits_of(config: Config) -> ConnectionLimits:
    """Return the limits of this process, from its settings and its file descriptors."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if descriptors == resource.RLIM_INFINITY:
        descriptors = 1_000_000
    most = descriptors * 3 // 4
    wanted = config.hub.max_connections or min(CONNECTIONS_MAX, most)
    if wanted > most:
        log_event(
            _log.warning,
            "max_connections_exceeds_file_limit",
            max_connections=wanted,
            expected_at_most=most,
            open_files_max=descriptors,
            hint=(
                "hub.max_connections should be at most three quarters of the open files that this process may have;"
                " raise that limit (ulimit -n, LimitNOFILE=) or lower the setting"
            ),
        )
    surplus = min(_SURPLUS_MAX, max(_SURPLUS_MIN, descriptors // _SURPLUS_SHARE))
    return ConnectionLimits(config.hub.head_seconds, wanted, surplus)
