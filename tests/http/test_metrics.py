"""The metrics as Prometheus reads them, counted by one process or by several together."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from prometheus_client import REGISTRY, CollectorRegistry, Counter, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.parser import text_string_to_metric_families

from onceward.errors import InvalidOption
from onceward.http.metrics import DURATION_BUCKETS, Counts, ProcessCounts, SharedFileCounts
from onceward.http.observer import HttpObserver


def text_of(registry: CollectorRegistry) -> str:
    return generate_latest(registry).decode()


def samples(registry: CollectorRegistry) -> dict[str, float]:
    """Return the samples as Prometheus would store them, by name and labels, without creation times."""
    return {
        f"{sample.name}{sample.labels or ''}": sample.value
        for family in text_string_to_metric_families(text_of(registry))
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


def a_day(observer: HttpObserver) -> None:
    observer.checked("k1", "processing_started", cached=False, seconds=0.0007)
    observer.checked("k1", "duplicate_processing", cached=False, seconds=0.0002)
    observer.checked("k1", "duplicate_completed", cached=True, seconds=0.00005)
    observer.checked("k1", "duplicate_completed", cached=True, seconds=75.0)
    observer.checked("k1", "fingerprint_mismatch", cached=False, seconds=0.001)
    observer.checked("k2", "in_doubt", cached=False, seconds=0.5, key_type="tool_based")
    observer.put_in_doubt("k2")
    observer.store_failed("k3", proceeded=True)


def test_the_metrics_have_the_documented_names_and_count_every_check() -> None:
    registry = CollectorRegistry()

    a_day(HttpObserver(registry))

    lines = text_of(registry).splitlines()
    for line in (
        "# TYPE idempotency_check_total counter",
        'idempotency_check_total{status="processing_started"} 1.0',
        'idempotency_check_total{status="duplicate_processing"} 1.0',
        'idempotency_check_total{status="duplicate_completed"} 2.0',
        'idempotency_check_total{status="fingerprint_mismatch"} 1.0',
        'idempotency_check_total{status="in_doubt"} 1.0',
        "# TYPE idempotency_cache_hit_total counter",
        "idempotency_cache_hit_total 2.0",
        'idempotency_key_type_total{type="client_provided"} 5.0',
        'idempotency_key_type_total{type="tool_based"} 1.0',
        "# TYPE idempotency_check_duration_seconds histogram",
        'idempotency_check_duration_seconds_bucket{le="0.0001"} 1.0',
        'idempotency_check_duration_seconds_bucket{le="0.001"} 4.0',
        'idempotency_check_duration_seconds_bucket{le="60.0"} 5.0',
        'idempotency_check_duration_seconds_bucket{le="+Inf"} 6.0',
        "idempotency_check_duration_seconds_count 6.0",
        "idempotency_in_doubt_total 1.0",
        'idempotency_store_failure_total{answer="proceeded"} 1.0',
    ):
        assert line in lines


def test_every_label_exists_before_the_first_request() -> None:
    registry = CollectorRegistry()
    HttpObserver(registry)

    found = samples(registry)
    assert set(found.values()) == {0.0}
    assert len([name for name in found if name.startswith("idempotency_check_total")]) == 7
    assert len([name for name in found if name.startswith("idempotency_key_type_total")]) == 4
    assert len([name for name in found if "_bucket" in name]) == len(DURATION_BUCKETS) + 1


def test_an_unforeseen_status_is_counted_too() -> None:
    registry = CollectorRegistry()

    HttpObserver(registry).checked("k", "something_new", cached=False, seconds=0.1)

    assert registry.get_sample_value("idempotency_check_total", {"status": "something_new"}) == 1


def test_observers_with_one_registry_add_up() -> None:
    registry = CollectorRegistry()

    a_day(HttpObserver(registry))
    a_day(HttpObserver(registry))

    assert registry.get_sample_value("idempotency_cache_hit_total") == 4


def test_observers_with_separate_registries_do_not_add_up() -> None:
    one, other = CollectorRegistry(), CollectorRegistry()

    a_day(HttpObserver(one))
    HttpObserver(other)

    assert other.get_sample_value("idempotency_cache_hit_total") == 0


def test_without_a_registry_the_default_one_is_used() -> None:
    observer, name = HttpObserver(), "idempotency_cache_hit_total"
    before = REGISTRY.get_sample_value(name) or 0

    a_day(observer)
    a_day(HttpObserver(metrics=False))

    assert REGISTRY.get_sample_value(name) == before + 2


def test_no_check_is_lost_when_threads_count_concurrently() -> None:
    registry = CollectorRegistry()

    def count(_worker: int) -> None:
        observer = HttpObserver(registry)
        for _ in range(500):
            observer.checked("k", "duplicate_completed", cached=True, seconds=0.001)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(count, range(8)))

    assert registry.get_sample_value("idempotency_check_total", {"status": "duplicate_completed"}) == 4000
    assert registry.get_sample_value("idempotency_check_duration_seconds_count") == 4000


def test_a_discarded_registry_is_not_kept_alive() -> None:
    registry = CollectorRegistry()
    HttpObserver(registry)
    gone = weakref.ref(registry)

    del registry
    gc.collect()

    assert gone() is None


def test_a_conflicting_metric_of_the_application_is_left_alone_and_explained() -> None:
    registry = CollectorRegistry()
    Counter("idempotency_key_type", "The application's own.", registry=registry).inc()

    with pytest.raises(InvalidOption, match=r"metrics=CollectorRegistry\(\)"):
        HttpObserver(registry)

    assert samples(registry) == {"idempotency_key_type_total": 1.0}


@pytest.mark.parametrize("wrong", [None, "yes", 1, object()])
def test_anything_but_a_registry_is_refused(wrong: object) -> None:
    with pytest.raises(InvalidOption, match="True, False or a prometheus_client"):
        HttpObserver(wrong)  # type: ignore[arg-type]


# Several processes.


def counted(counts: Counts) -> dict[str, float]:
    registry = CollectorRegistry()
    registry.register(counts)
    for status, cached, seconds in (("processing_started", False, 0.0001), ("new", True, 0.00011), ("new", True, 61)):
        counts.checked(status, "beat_based", cached, seconds)
    counts.put_in_doubt()
    counts.store_failed("refused")
    return samples(registry)


def test_both_ways_to_count_give_the_same_figures() -> None:
    assert counted(ProcessCounts()) == counted(SharedFileCounts())


WORKER = """
from prometheus_client import CollectorRegistry
from onceward.http.observer import HttpObserver

for observer in (HttpObserver(), HttpObserver(CollectorRegistry())):
    observer.checked("k", "duplicate_completed", cached=True, seconds=0.002)
"""


def test_processes_that_share_a_folder_add_up(tmp_path: Path) -> None:
    """Each process has two registries, which must not overwrite each other's counts."""
    workers = [
        subprocess.Popen([sys.executable, "-c", WORKER], env={**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)})
        for _ in range(2)
    ]
    assert [worker.wait(30) for worker in workers] == [0, 0]

    registry = CollectorRegistry()
    MultiProcessCollector(registry, str(tmp_path))  # type: ignore[no-untyped-call]
    assert registry.get_sample_value("idempotency_cache_hit_total") == 4
    assert registry.get_sample_value("idempotency_check_total", {"status": "duplicate_completed"}) == 4
    assert registry.get_sample_value("idempotency_check_duration_seconds_count") == 4
