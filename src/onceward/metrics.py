"""Prometheus gauges of a ledger: `onceward_in_doubt` and `onceward_in_doubt_oldest_seconds`.

    registry.register(DoubtGauges(ledger))

The gauges are read from the store, which all processes share, so every process shows the same numbers. Do not add them up.
Needs prometheus-client.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Iterable
from typing import Generic, NamedTuple, TypeVar

from onceward.core.claim import SECOND, Status
from onceward.errors import missing_extra
from onceward.ledger.blocking import wait
from onceward.ledger.internals import dispatcher_of
from onceward.ledger.ledger import Ledger
from onceward.store import PAGE_MAX

try:
    from prometheus_client.core import GaugeMetricFamily
    from prometheus_client.metrics_core import Metric
    from prometheus_client.registry import Collector
except ModuleNotFoundError as error:
    raise missing_extra(error, __name__, "metrics") from error

T = TypeVar("T")

# A value is read again when it is older than this and a scrape asks for it.
CACHE_SECONDS = 5.0
# A slow read is repeated less often, so that it takes at most a twentieth of one connection's time.
COST_FACTOR = 20.0
# A scrape waits this long for a read, counted from the start of the read. It then shows the last value.
WAIT_SECONDS = 0.5
# A value older than this is not shown. A slow read may miss two turns first.
STALE_SECONDS = 60.0
# Doubts are counted up to here. More need the same attention, and the count must stay cheap.
DOUBTS_MAX = 10_000


class CachedValue(Generic[T]):
    """A value that a thread reads in the background when it is asked for and too old.

    A scrape that asks for it waits for at most `WAIT_SECONDS`, and not at all for a read that has already taken longer.

    Args:
        read: Reads the value. It may block and raise; then the last value is used until it is stale.
    """

    def __init__(self, read: Callable[[], T]) -> None:
        self._read = read
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._mutex = threading.Lock()
        self._value: T | None = None
        self._due_at = self._stale_at = self._began_at = -math.inf
        self._done: threading.Event | None = None

    def get(self) -> T | None:
        """Return the value, or None if it could not be read for some time."""
        if self._pid != os.getpid():
            self._reset()  # a forked child does not have the thread
        with self._mutex:
            now = time.monotonic()
            if self._done is None and now >= self._due_at:
                self._began_at, self._done = now, threading.Event()
                threading.Thread(target=self._refresh, args=(self._done,), name="onceward-gauges", daemon=True).start()
            done, left = self._done, self._began_at + WAIT_SECONDS - now
        if done is not None and left > 0:
            done.wait(left)
        with self._mutex:
            return self._value if time.monotonic() < self._stale_at else None

    def _refresh(self, done: threading.Event) -> None:
        began_at = time.monotonic()
        try:
            value: T | None = self._read()
        except Exception:  # noqa: BLE001  # the store is down or closed: requests log it, and the gauge goes stale
            value = None
        ended_at = time.monotonic()
        pause = max(CACHE_SECONDS, COST_FACTOR * (ended_at - began_at))
        with self._mutex:
            if value is not None:
                self._value, self._stale_at = value, ended_at + max(STALE_SECONDS, 3 * pause)
            # After a failure, however long it took, the value is needed soon.
            self._due_at = ended_at + (CACHE_SECONDS if value is None else pause)
            self._done = None
        done.set()


class DoubtCount(NamedTuple):
    """The number of claims in doubt, and the age of the oldest of them in seconds (0 if there are none)."""

    in_doubt: int
    oldest_seconds: float


async def read_doubts(ledger: Ledger) -> DoubtCount:
    """Count the claims in doubt of a ledger's namespace, through the store's index of unfinished entries.

    Args:
        ledger: The ledger.

    Returns:
        The number of doubts, at most a page more than `DOUBTS_MAX`, and the age of the oldest of these claims.

    Raises:
        StoreUnavailable: If the store did not respond.
    """
    count, after = 0, ""
    oldest: int | None = None
    while True:
        page = await ledger.scan(status=Status.IN_DOUBT, after=after, limit=PAGE_MAX)
        for entry in page.entries:
            count += 1
            claimed_at = entry.claimed_at or entry.created_at
            oldest = claimed_at if oldest is None else min(oldest, claimed_at)
        after = page.next
        if not after or count >= DOUBTS_MAX:
            break
    if oldest is None:
        return DoubtCount(0, 0.0)
    now = (await dispatcher_of(ledger).read([])).now
    return DoubtCount(count, max(0, now - oldest) / SECOND)


class DoubtGauges(Collector):
    """Collector of the doubts of one ledger, for a registry of prometheus-client.

    `onceward_in_doubt` is the number of claims in doubt, and `onceward_in_doubt_oldest_seconds` is the time since the
    oldest of them was claimed. Both are absent while the store cannot be read: NaN would turn every sum into NaN, and an
    old number would look like a current one.

    Args:
        ledger: The ledger. A registry can have the gauges of one ledger.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._doubts = CachedValue(lambda: wait(read_doubts(ledger)))

    def describe(self) -> Iterable[Metric]:
        """Return the metrics without values, with which a registry recognises duplicate names."""
        return _doubt_metrics()

    def collect(self) -> Iterable[Metric]:
        """Return the metrics, without values if the store could not be read."""
        count, oldest = _doubt_metrics()
        doubts = self._doubts.get()
        if doubts is not None:
            count.add_metric([], doubts.in_doubt)
            oldest.add_metric([], doubts.oldest_seconds)
        return count, oldest


def _doubt_metrics() -> tuple[GaugeMetricFamily, GaugeMetricFamily]:
    return (
        GaugeMetricFamily("onceward_in_doubt", "Claims in doubt, which wait for a verdict.", labels=[]),
        GaugeMetricFamily("onceward_in_doubt_oldest_seconds", "Age of the oldest claim in doubt.", labels=[]),
    )
