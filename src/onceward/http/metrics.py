"""Prometheus metrics of idempotency checks. Needs prometheus-client; the observer works without this module.

    idempotency_check_total{status}          all checks, by result
    idempotency_cache_hit_total              checks answered with a stored response
    idempotency_key_type_total{type}         all checks, by the origin of the key
    idempotency_check_duration_seconds       the duration of a check, with any wait for a running duplicate
    idempotency_in_doubt_total               operations that ended in doubt and wait for a verdict
    idempotency_store_failure_total{answer}  requests while the store was down: `refused` with 503, or `proceeded`

There are two implementations, with the same names and meaning. A single process counts in plain numbers under one lock,
which takes a quarter of the time of prometheus-client's objects with a lock each. Several processes that count together
(`PROMETHEUS_MULTIPROC_DIR`) need those objects: only they write to the files that the processes share.
"""

from __future__ import annotations

import functools
import os
import threading
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import Protocol, TypeAlias
from weakref import WeakKeyDictionary

from onceward.errors import missing_extra

try:
    from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram
    from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
    from prometheus_client.metrics_core import Metric
except ModuleNotFoundError as missing:
    raise missing_extra(missing, "onceward.http.metrics", "metrics") from missing

from onceward.core.claim import CHECK_STATUS
from onceward.errors import InvalidOption
from onceward.http.observer import TOO_MANY_KEYS

# Label values that are exported as 0 from the start, so that a rate over time includes the first event.
STATUSES = (*CHECK_STATUS.values(), TOO_MANY_KEYS)
KEY_TYPES = ("client_provided", "auto_generated", "beat_based", "tool_based")
ANSWERS = ("refused", "proceeded")

# Upper bounds, from the time of a replay on a memory store to the longest wait that a client may ask for.
DURATION_BUCKETS = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
)  # fmt: skip

# Name and help text. prometheus-client adds `_total` to the name of a counter.
CHECKS = "idempotency_check", "Checks of an idempotency key, by result."
HITS = "idempotency_cache_hit", "Checks answered with a stored response."
TYPES = "idempotency_key_type", "Checks of an idempotency key, by the origin of the key."
SECONDS = "idempotency_check_duration_seconds", "Duration of a check, including any wait for a running duplicate."
IN_DOUBT = "idempotency_in_doubt", "Operations that ended in doubt and wait for a verdict."
FAILURES = "idempotency_store_failure", "Requests while the store was down, by whether they were refused or proceeded."


# True: the default registry. False: do not count. Otherwise: the given registry.
Metrics: TypeAlias = bool | CollectorRegistry


class Counts(Protocol):
    """Counters of checks, and the collector that a registry reads them from."""

    def checked(self, status: str, key_type: str, cached: bool, seconds: float) -> None: ...

    def put_in_doubt(self) -> None: ...

    def store_failed(self, answer: str) -> None: ...

    def collect(self) -> Iterable[Metric]: ...


class ProcessCounts:
    """Counts of one process, in plain numbers."""

    __slots__ = ("_buckets", "_checks", "_failures", "_hits", "_in_doubt", "_lock", "_seconds", "_types")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._checks = defaultdict(int, dict.fromkeys(STATUSES, 0))
        self._types = defaultdict(int, dict.fromkeys(KEY_TYPES, 0))
        self._failures = defaultdict(int, dict.fromkeys(ANSWERS, 0))
        self._hits = self._in_doubt = 0
        # One more bucket, for checks that took longer than the last bound.
        self._buckets = [0] * (len(DURATION_BUCKETS) + 1)
        self._seconds = 0.0

    def checked(self, status: str, key_type: str, cached: bool, seconds: float) -> None:
        with self._lock:
            self._checks[status] += 1
            self._types[key_type] += 1
            self._buckets[bisect_left(DURATION_BUCKETS, seconds)] += 1
            self._seconds += seconds
            if cached:
                self._hits += 1

    def put_in_doubt(self) -> None:
        with self._lock:
            self._in_doubt += 1

    def store_failed(self, answer: str) -> None:
        with self._lock:
            self._failures[answer] += 1

    def collect(self) -> list[Metric]:
        with self._lock:
            buckets = list(accumulate(self._buckets))
            bounds = [*map(repr, DURATION_BUCKETS), "+Inf"]
            return [
                _by_label(CHECKS, "status", self._checks),
                CounterMetricFamily(*HITS, value=self._hits),
                _by_label(TYPES, "type", self._types),
                HistogramMetricFamily(*SECONDS, list(zip(bounds, buckets, strict=True)), self._seconds),
                CounterMetricFamily(*IN_DOUBT, value=self._in_doubt),
                _by_label(FAILURES, "answer", self._failures),
            ]

    # The registry asks for the names, to refuse those that it already has.
    describe = collect


def _by_label(metric: tuple[str, str], label: str, counts: dict[str, int]) -> CounterMetricFamily:
    family = CounterMetricFamily(*metric, labels=[label])
    for value, count in counts.items():
        family.add_metric([value], count)
    return family


class SharedFileCounts:
    """Counts that several processes share, in the files of prometheus-client."""

    __slots__ = ("_checks", "_failures", "_hits", "_in_doubt", "_seconds", "_types")

    def __init__(self) -> None:
        self._checks = _Labelled(Counter(*CHECKS, ["status"], registry=None), STATUSES)
        self._types = _Labelled(Counter(*TYPES, ["type"], registry=None), KEY_TYPES)
        self._failures = _Labelled(Counter(*FAILURES, ["answer"], registry=None), ANSWERS)
        self._hits = Counter(*HITS, registry=None)
        self._in_doubt = Counter(*IN_DOUBT, registry=None)
        self._seconds = Histogram(*SECONDS, buckets=DURATION_BUCKETS, registry=None)

    def checked(self, status: str, key_type: str, cached: bool, seconds: float) -> None:
        self._checks.increment(status)
        self._types.increment(key_type)
        self._seconds.observe(seconds)
        if cached:
            self._hits.inc()

    def put_in_doubt(self) -> None:
        self._in_doubt.inc()

    def store_failed(self, answer: str) -> None:
        self._failures.increment(answer)

    def collect(self) -> Iterator[Metric]:
        counters = (self._checks.counter, self._hits, self._types.counter, self._in_doubt, self._failures.counter)
        for collector in (*counters, self._seconds):
            yield from collector.collect()

    describe = collect


class _Labelled:
    """A counter with one label. Its children are cached, because finding one takes a lock."""

    __slots__ = ("_children", "counter")

    def __init__(self, counter: Counter, values: tuple[str, ...]) -> None:
        self.counter = counter
        self._children = {value: counter.labels(value) for value in values}

    def increment(self, value: str) -> None:
        child = self._children.get(value)
        if child is None:
            child = self._children[value] = self.counter.labels(value)
        child.inc()


# A registry accepts each name once, so all users of a registry share its counts. They are freed with the registry.
_by_registry: WeakKeyDictionary[CollectorRegistry, Counts] = WeakKeyDictionary()
_lock = threading.Lock()
# All registries of a process write to the same files: a second set of counts would overwrite the first.
_shared_files = functools.cache(SharedFileCounts)


def counts_in(metrics: Metrics) -> Counts | None:
    """Return the counts of a registry, and create them on first use. True is prometheus-client's default registry."""
    if metrics is False:
        return None
    registry = REGISTRY if metrics is True else metrics
    if not isinstance(registry, CollectorRegistry):
        raise InvalidOption(f"metrics= must be True, False or a prometheus_client.CollectorRegistry, got {metrics!r}")
    with _lock:
        counts = _by_registry.get(registry)
        if counts is None:
            counts = _shared_files() if "PROMETHEUS_MULTIPROC_DIR" in os.environ else ProcessCounts()
            try:
                registry.register(counts)
            except ValueError as error:
                raise InvalidOption(
                    f"the registry already has a metric with the same name as one of Onceward's ({error}); pass "
                    "metrics=CollectorRegistry() to use a separate registry, or metrics=False"
                ) from error
            _by_registry[registry] = counts
        return counts
