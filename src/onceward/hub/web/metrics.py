"""Metrics of `/metrics`: the requests of all workers, and the checks of the idempotency middleware.

    onceward_http_requests_total{method,route,status}   every request, by route template
    onceward_http_request_seconds{route}                response times, without streams
    onceward_streams                                    open WebSockets and event streams
    onceward_refusals_total{reason}                     refused before they reached a route: head_too_large, slow_head,
                                                        too_many_connections, too_many_streams, not_http
    onceward_entries_total{action}                      entries of `POST /db/insert`: inserted, updated, skipped, failed

The gauges of `hub/monitoring/gauges.py` follow.

If `PROMETHEUS_MULTIPROC_DIR` is set before this module is imported, all processes count in files of that folder, and
every process shows their sum. Without it, there is one process, which shows its own registry.
"""

from __future__ import annotations

import collections
import functools
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    REGISTRY,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)
from prometheus_client.metrics_core import Metric
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead
from prometheus_client.registry import Collector

from onceward.http.middleware.handler_lookup import flat
from onceward.hub.web.route_index import RouteIndex

# From the time of a single read to that of an upload.
SECONDS_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
# Labels are bounded: unknown paths and methods are counted under one of these.
UNMATCHED = "unmatched"
OTHER_METHOD = "OTHER"
# Exported as 0 from the start, so that an increase over time includes the first refusal.
ENTRY_ACTIONS = ("inserted", "updated", "skipped", "failed")
REFUSALS = ("head_too_large", "slow_head", "too_many_connections", "too_many_streams", "not_http")
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})

# The media type of `render`.
MEDIA_TYPE = CONTENT_TYPE_LATEST
_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
_FULL = 2  # Starlette's `Match.FULL`.


class HttpCounts(Collector):
    """HTTP metrics of this process."""

    def __init__(self) -> None:
        labels = ["method", "route", "status"]
        self._requests = Counter(
            "onceward_http_requests", "HTTP requests by method, route template and status.", labels, registry=None
        )
        self._seconds = Histogram(
            "onceward_http_request_seconds",
            "Response times in seconds, excluding streams.",
            ["route"],
            buckets=SECONDS_BUCKETS,
            registry=None,
        )
        self._streams = Gauge(
            "onceward_streams", "Open WebSockets and event streams.", multiprocess_mode="livesum", registry=None
        )
        self._refusals = Counter(
            "onceward_refusals",
            "Connections and streams refused because of a limit of the hub.",
            ["reason"],
            registry=None,
        )
        for reason in REFUSALS:
            self._refusals.labels(reason)
        self._entries = Counter(
            "onceward_entries",
            "Entries of POST /db/insert by what happened to them, without replayed responses.",
            ["action"],
            registry=None,
        )
        self._entries_by_action = {action: self._entries.labels(action) for action in ENTRY_ACTIONS}
        # Cached, because `labels()` takes a lock. Their number is bounded by routes, methods and statuses.
        self._counters: dict[tuple[str, str, int], Counter] = {}
        self._timers: dict[str, Histogram] = {}

    def count_response(self, method: str, route: str, status: int) -> None:
        labels = (method if method in METHODS else OTHER_METHOD, route, status)
        counter = self._counters.get(labels)
        if counter is None:
            counter = self._counters[labels] = self._requests.labels(*labels)
        counter.inc()

    def observe_seconds(self, route: str, seconds: float) -> None:
        timer = self._timers.get(route)
        if timer is None:
            timer = self._timers[route] = self._seconds.labels(route)
        timer.observe(seconds)

    def stream_opened(self) -> None:
        self._streams.inc()

    def stream_closed(self) -> None:
        self._streams.dec()

    def count_refusal(self, reason: str) -> None:
        self._refusals.labels(reason).inc()

    def count_entries(self, actions: Iterable[str]) -> None:
        """Count entries by what their insert did."""
        for action, count in collections.Counter(actions).items():
            self._entries_by_action[action].inc(count)

    def collect(self) -> Iterator[Metric]:
        for metric in (self._requests, self._seconds, self._streams, self._refusals, self._entries):
            yield from metric.collect()


@functools.cache
def http_counts() -> HttpCounts:
    """Return the HTTP metrics of this process, registered once in prometheus-client's default registry."""
    counts = HttpCounts()
    REGISTRY.register(counts)
    return counts


def render(gauges: Collector | None = None) -> bytes:
    """Render the text of `/metrics`: counts summed over all workers, then gauges that are the same in every worker."""
    shared = CollectorRegistry()
    if gauges is not None:
        shared.register(gauges)
    if _FOLDER not in os.environ:
        return generate_latest(REGISTRY) + generate_latest(shared)
    MultiProcessCollector(shared)  # type: ignore[no-untyped-call]
    return generate_latest(shared)


# Names of the counters that the console shows, with the label to add up by.
_CHECKS = "idempotency_check_total"
_FAILURES = "idempotency_store_failure_total"
_ENTRIES = "onceward_entries_total"


def check_totals() -> dict[str, float]:
    """Return the counters of the console, for all workers, since the hub has started.

    They are the checks of idempotency keys by result, `store_failure`, and `entry_inserted` and so on.
    """
    if _FOLDER in os.environ:
        shared = CollectorRegistry()
        MultiProcessCollector(shared)  # type: ignore[no-untyped-call]
        families = shared.collect()
    else:
        families = REGISTRY.restricted_registry([_CHECKS, _FAILURES, _ENTRIES]).collect()
    totals = {"store_failure": 0.0}
    for family in families:
        for sample in family.samples:
            if sample.name == _CHECKS:
                totals[sample.labels["status"]] = totals.get(sample.labels["status"], 0.0) + sample.value
            elif sample.name == _FAILURES:
                totals["store_failure"] += sample.value
            elif sample.name == _ENTRIES:
                totals[f"entry_{sample.labels['action']}"] = sample.value
    return totals


def live_workers() -> list[int]:
    """Return the process ids of the workers that are alive, this one included."""
    if _FOLDER not in os.environ:
        return [os.getpid()]
    files = Path(os.environ[_FOLDER]).glob("gauge_livesum_*.db")
    return sorted({os.getpid(), *(int(pid) for file in files if (pid := file.stem.rpartition("_")[2]).isdigit())})


def forget_worker(pid: int) -> None:
    """Remove a dead worker's open streams from the gauge. Its counters stay."""
    if _FOLDER in os.environ:
        mark_process_dead(pid)  # type: ignore[no-untyped-call]


class RouteTemplates:
    """Lookup of the route template of a request, such as `/api/v1/topics/{topic_id}`."""

    def __init__(self, app: Any) -> None:
        # Unwrap the middlewares from the outside in, up to the application that has the routes.
        while not hasattr(app, "routes") and hasattr(app, "app"):
            app = app.app
        self._source: Iterable[Any] = getattr(app, "routes", ())

    @functools.cached_property
    def _routes(self) -> list[Any]:
        """Collect the routes at the first request: until then, routes may be added."""
        return [getattr(route, "starlette_route", None) or route for route in flat(self._source)]

    @functools.cached_property
    def _of_endpoint(self) -> dict[Any, str]:
        """Map handlers with only one path to its template."""
        found: dict[Any, set[str]] = {}
        for route in self._routes:
            found.setdefault(getattr(route, "endpoint", route), set()).add(_template(route))
        return {endpoint: templates.pop() for endpoint, templates in found.items() if len(templates) == 1}

    @functools.cached_property
    def _index(self) -> RouteIndex[list[Any]]:
        return RouteIndex(self._routes, list)

    def of(self, scope: Any) -> str:
        found = self._of_endpoint.get(scope.get("endpoint"))
        if found is not None:
            return found
        # The handler has several paths, or the request never reached the router: it was refused or replayed.
        routes = self._index.find(scope) or self._routes
        return next((_template(route) for route in routes if route.matches(scope)[0].value == _FULL), UNMATCHED)


def _template(route: Any) -> str:
    return getattr(route, "path_format", None) or getattr(route, "path", None) or UNMATCHED
