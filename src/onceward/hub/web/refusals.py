"""Refused connections and streams: counted in the metrics, and logged at a bounded rate."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from onceward.core.log_event import log_event
from onceward.hub.web.metrics import http_counts

# Each reason is logged at most once in this time. The next line has the number of refusals since then.
_LOG_SECONDS = 10.0

_log = logging.getLogger("onceward.hub")


class Refusals:
    """Counter of this process's refusals, which logs them at a bounded rate."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._logged_at: dict[str, float] = {}
        self._unlogged: dict[str, int] = {}

    def add(self, reason: str, client: str | None) -> None:
        """Count a refusal. `reason` becomes a label of the metric, so it must be one of a few words."""
        http_counts().count_refusal(reason)
        now = self._clock()
        count = self._unlogged.get(reason, 0) + 1
        if now - self._logged_at.get(reason, -_LOG_SECONDS) < _LOG_SECONDS:
            self._unlogged[reason] = count
            return
        self._logged_at[reason], self._unlogged[reason] = now, 0
        log_event(_log.warning, "connection_refused", reason=reason, client=client, count=count)
