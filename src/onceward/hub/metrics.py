"""What `/metrics` shows: the requests of all workers, and the checks of the idempotency middleware.

    onceward_http_requests_total{method,route,status}   every request, by route template
    onceward_http_request_seconds{route}                how long answers took; streams are not among them
    onceward_streams                                    open WebSockets and event streams
    onceward_refusals_total{reason}                     refused before a route saw them: head_too_large, slow_head,
                                                        too_many_connections, too_many_streams, not_http

With `PROMETHEUS_MULTIPROC_DIR` set before this is imported, all processes count in the files of that folder, and
whichever is asked shows their sum. Without it there is one process, which shows its own registry.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Iterator
from typing import Any

from fastapi import APIRouter
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
from starlette.responses import PlainTextResponse, Response

from onceward.http.routes import flat

# From a check that only reads to an upload.
SECONDS_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
# Labels are bounded: whatever a client makes up is counted under one of these.
UNMATCHED = "unmatched"
OTHER_METHOD = "OTHER"
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})

_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
_FULL = 2  # Starlette's `Match.FULL`.


class HttpCounts(Collector):
    """The counts of this process."""

    def __init__(self) -> None:
        labels = ["method", "route", "status"]
        self._requests = Counter("onceward_http_requests", "Requests that were answered.", labels, registry=None)
        self._seconds = Histogram(
            "onceward_http_request_seconds",
            "How long answers took, without streams.",
            ["route"],
            buckets=SECONDS_BUCKETS,
            registry=None,
        )
        self._streams = Gauge(
            "onceward_streams", "Open WebSockets and event streams.", multiprocess_mode="livesum", registry=None
        )
        self._refusals = Counter(
            "onceward_refusals", "Connections and streams over a limit of the hub.", ["reason"], registry=None
        )
        # Finding a child takes a lock. There are as many as routes, methods and statuses, and no more.
        self._counters: dict[tuple[str, str, int], Counter] = {}
        self._timers: dict[str, Histogram] = {}

    def answered(self, method: str, route: str, status: int) -> None:
        place = (method if method in METHODS else OTHER_METHOD, route, status)
        counter = self._counters.get(place)
        if counter is None:
            counter = self._counters[place] = self._requests.labels(*place)
        counter.inc()

    def took(self, route: str, seconds: float) -> None:
        timer = self._timers.get(route)
        if timer is None:
            timer = self._timers[route] = self._seconds.labels(route)
        timer.observe(seconds)

    def stream_opened(self) -> None:
        self._streams.inc()

    def stream_closed(self) -> None:
        self._streams.dec()

    def refused(self, reason: str) -> None:
        self._refusals.labels(reason).inc()

    def collect(self) -> Iterator[Metric]:
        for metric in (self._requests, self._seconds, self._streams, self._refusals):
            yield from metric.collect()


@functools.cache
def http_counts() -> HttpCounts:
    """The counts of this process, in prometheus-client's default registry: there is one process, and one of them."""
    counts = HttpCounts()
    REGISTRY.register(counts)
    return counts


def render() -> bytes:
    """The text of `/metrics`: all workers summed where there are several."""
    if _FOLDER not in os.environ:
        return generate_latest(REGISTRY)
    registry = CollectorRegistry()
    MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    return generate_latest(registry)


router = APIRouter(tags=["operations"])


@router.get("/metrics", response_class=PlainTextResponse)
def show() -> Response:
    """Counts for Prometheus, of all workers."""
    return Response(render(), media_type=CONTENT_TYPE_LATEST)


def forget_worker(pid: int) -> None:
    """A worker is gone: its open streams no longer count. What it counted up stays."""
    if _FOLDER in os.environ:
        mark_process_dead(pid)  # type: ignore[no-untyped-call]


class Templates:
    """Which route template a request has, such as `/api/v1/topics/{topic_id}`."""

    def __init__(self, app: Any) -> None:
        # From the outside in: middlewares say what they wrap, and the application behind them what its routes are.
        while not hasattr(app, "routes") and hasattr(app, "app"):
            app = app.app
        self._source: Iterable[Any] = getattr(app, "routes", ())
        self._of_endpoint: dict[Any, set[str]] = {}

    @functools.cached_property
    def _routes(self) -> list[Any]:
        """Looked for at the first request: until then routes may come."""
        routes = [getattr(route, "starlette_route", None) or route for route in flat(self._source)]
        for route in routes:
            self._of_endpoint.setdefault(getattr(route, "endpoint", route), set()).add(_template(route))
        return routes

    def of(self, scope: Any) -> str:
        routes = self._routes
        paths = self._of_endpoint.get(scope.get("endpoint")) or ()
        if len(paths) == 1:
            return next(iter(paths))
        # One handler has several paths; or it was answered before the router saw it: refused at the door, or replayed.
        return next((_template(route) for route in routes if route.matches(scope)[0].value == _FULL), UNMATCHED)


def _template(route: Any) -> str:
    return getattr(route, "path_format", None) or getattr(route, "path", None) or UNMATCHED
