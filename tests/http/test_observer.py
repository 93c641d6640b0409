"""Logs and traces for an operator, without any required package."""

from __future__ import annotations

import io
import logging
import subprocess
import sys
from collections.abc import Iterator

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Tracer

from onceward.http.observer import HttpObserver

KEY = "order-2024-0001-alice-secret-part"
CUT = "order-2024-0001-alic..."


# The log.


def fields(record: logging.LogRecord, *names: str) -> list[object]:
    return [getattr(record, name) for name in names]


def test_a_check_is_one_event_with_the_shortened_key(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "onceward.http"):
        HttpObserver(metrics=False).checked(KEY, "processing_started", cached=False, seconds=0.001)

    [record] = caplog.records
    assert (record.name, record.levelname, record.msg) == ("onceward.http", "INFO", "idempotency_check")
    assert fields(record, "idempotency_key", "status", "cached") == [CUT, "processing_started", False]


def test_with_plain_logging_the_fields_are_in_the_message() -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s %(message)s"))
    logger = logging.getLogger("onceward.http")
    logger.addHandler(handler)
    level = logger.level
    logger.setLevel(logging.INFO)
    observer = HttpObserver(metrics=False)
    try:
        observer.checked(KEY, "duplicate_completed", cached=True, seconds=0.001)
        observer.put_in_doubt(KEY)
        observer.store_failed(KEY, proceeded=True)
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)

    assert stream.getvalue().splitlines() == [
        f"INFO onceward.http idempotency_check idempotency_key={CUT} status=duplicate_completed cached=True",
        f"INFO onceward.http idempotent_cache_hit idempotency_key={CUT}",
        f"WARNING onceward.http idempotency_in_doubt idempotency_key={CUT}",
        f"ERROR onceward.http idempotency_store_failure idempotency_key={CUT} answer=proceeded",
    ]


def test_a_key_with_a_percent_sign_is_shown_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "onceward.http"):
        HttpObserver(metrics=False).checked("100%s", "processing_started", cached=False, seconds=0.001)

    assert "idempotency_key=100%s..." in caplog.records[0].getMessage()


def test_a_replay_is_also_a_cache_hit(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "onceward.http"):
        HttpObserver(metrics=False).checked(KEY, "duplicate_completed", cached=True, seconds=0.001)

    check, hit = caplog.records
    assert fields(check, "msg", "status", "cached") == ["idempotency_check", "duplicate_completed", True]
    assert fields(hit, "msg", "idempotency_key") == ["idempotent_cache_hit", CUT]


def test_a_short_key_is_marked_as_shortened_like_any_other(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "onceward.http"):
        HttpObserver(metrics=False).checked("k1", "processing_started", cached=False, seconds=0.001)

    assert fields(caplog.records[0], "idempotency_key") == ["k1..."]


def test_a_logger_above_info_level_gets_no_checks(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "onceward.http"):
        HttpObserver(metrics=False).checked(KEY, "duplicate_completed", cached=True, seconds=0.001)

    assert caplog.records == []


def test_events_for_an_operator_are_warnings_or_errors(caplog: pytest.LogCaptureFixture) -> None:
    observer = HttpObserver(metrics=False)

    observer.put_in_doubt(KEY)
    observer.store_failed(KEY, proceeded=True)
    observer.store_failed(KEY, proceeded=False)

    doubt, proceeded, refused = caplog.records
    assert fields(doubt, "levelname", "msg", "idempotency_key") == ["WARNING", "idempotency_in_doubt", CUT]
    assert fields(proceeded, "levelname", "msg", "answer") == ["ERROR", "idempotency_store_failure", "proceeded"]
    assert fields(refused, "idempotency_key", "answer") == [CUT, "refused"]


# The trace.


@pytest.fixture
def spans() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def tracer(spans: InMemorySpanExporter) -> Iterator[Tracer]:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    yield provider.get_tracer("tests")
    provider.shutdown()


def attributes(span: ReadableSpan) -> dict[str, object]:
    return dict(span.attributes or {})


def test_the_span_of_the_request_has_the_result_of_the_check(spans: InMemorySpanExporter, tracer: Tracer) -> None:
    observer = HttpObserver(metrics=False)

    with tracer.start_as_current_span("POST /orders"):
        observer.checked(KEY, "duplicate_completed", cached=True, seconds=0.001)

    [span] = spans.get_finished_spans()
    assert attributes(span) == {
        "idempotency.key": CUT,
        "idempotency.status": "duplicate_completed",
        "idempotency.replayed": True,
    }


def test_only_the_current_span_gets_attributes(spans: InMemorySpanExporter, tracer: Tracer) -> None:
    observer = HttpObserver(metrics=False)

    with tracer.start_as_current_span("outer"), tracer.start_as_current_span("inner"):
        observer.checked(KEY, "processing_started", cached=False, seconds=0.001)
    observer.checked(KEY, "duplicate_processing", cached=False, seconds=0.001)

    inner, outer = spans.get_finished_spans()
    assert attributes(inner)["idempotency.status"] == "processing_started"
    assert attributes(outer) == {}


# Packages that are not installed are not needed.

WITHOUT = """
import sys
for package in ("prometheus_client", "opentelemetry", "cryptography"):
    sys.modules[package] = None  # as if it were not installed
from onceward.errors import InvalidOption
from onceward.http.observer import HttpObserver
from onceward.http.stored.encryption import Encryption

observer = HttpObserver()
observer.checked("k", "duplicate_completed", cached=True, seconds=0.001)
observer.put_in_doubt("k")
observer.store_failed("k", proceeded=False)
for make in (lambda: HttpObserver(object()), lambda: Encryption([b"k" * 32])):
    try:
        make()
    except InvalidOption as error:
        print(error)
"""

UNTOUCHED = """
import sys
import onceward.http.observer, onceward.http.stored.encryption
print(sorted({"prometheus_client", "opentelemetry", "cryptography"} & sys.modules.keys()))
"""


def python(code: str) -> list[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.splitlines()


def test_without_the_packages_nothing_is_counted_and_requesting_them_says_what_to_install() -> None:
    printed = python(WITHOUT)

    assert [line.partition(": ")[2] for line in printed] == [
        "pip install 'onceward[metrics]'",
        "pip install 'onceward[crypto]'",
    ]


def test_importing_the_modules_imports_none_of_the_packages() -> None:
    assert python(UNTOUCHED) == ["[]"]
