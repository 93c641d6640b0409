"""SIGSTOP past the lease: a worker wakes up with a response that it may no longer send."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from tests.faults.http.conftest import StartWorker
from tests.faults.http.http_worker_process import Worker
from tests.faults.http.raw_client import RawResponse
from tests.faults.http.worker import PIECES, whole_body
from tests.faults.worker_process import Effects
from tests.waiting import until

from onceward.testing import fault_at

KEY = "order-1"
# The lease of the frozen worker, for which the others wait. The worker that takes over has a long one.
LEASE_SECONDS = 0.2
LEASE_SECONDS_OF_OTHERS = 30.0


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as threads:
        yield threads


def freeze_at(
    start_worker: StartWorker, executor: ThreadPoolExecutor, point: str, path: str, nth: int = 1
) -> tuple[Worker, Future[RawResponse], Worker]:
    """Freeze a worker at this point of a request. Return it, the future of its response, and another worker."""
    frozen = start_worker(fault_at(point, "freeze", nth), lease_seconds=LEASE_SECONDS)
    other = start_worker(lease_seconds=LEASE_SECONDS_OF_OTHERS)
    future = executor.submit(frozen.send_request, path, KEY)
    frozen.wait_until_frozen()
    return frozen, future, other


def request_until_decided(worker: Worker, path: str) -> RawResponse:
    """Retry while the response says that the key is in progress; a running body may be cut in between."""

    def send_request() -> RawResponse | None:
        try:
            answer = worker.send_request(path, KEY, wait=5)
        except OSError:
            return None
        return answer if answer.retry_after is None else None

    return until(send_request, f"{KEY} is never decided")


@pytest.mark.parametrize("point", ["after-effect", "before-settle"])
def test_the_client_of_a_thawed_worker_gets_the_response_of_the_worker_that_took_over(
    start_worker: StartWorker, executor: ThreadPoolExecutor, effects: Effects, point: str
) -> None:
    frozen, future, other = freeze_at(start_worker, executor, point, "/repeat")
    taken_over = request_until_decided(other, "/repeat")
    frozen.thaw()

    assert (taken_over.status, taken_over.replayed) == (201, False)
    assert (future.result().same, future.result().replayed) == (taken_over.same, True)
    assert [worker.send_request("/repeat", KEY).same for worker in (frozen, other)] == [taken_over.same] * 2
    assert len(effects.of(KEY)) == 2


@pytest.mark.parametrize(
    ("point", "nth"),
    [("after-effect", 1), ("before-append", 1), ("streaming", 2), ("streaming", PIECES), ("before-settle", 1)],
)
def test_a_body_in_progress_is_cut_and_never_becomes_the_outcome(
    start_worker: StartWorker, executor: ThreadPoolExecutor, effects: Effects, point: str, nth: int
) -> None:
    frozen, future, other = freeze_at(start_worker, executor, point, "/stream", nth)
    taken_over = request_until_decided(other, "/stream")
    frozen.thaw()

    assert isinstance(future.exception(), OSError)
    assert taken_over.body == whole_body(effects.of(KEY)[-1].token)
    assert [worker.send_request("/stream", KEY).same for worker in (frozen, other)] == [taken_over.same] * 2
    assert len(effects.of(KEY)) == 2


def test_on_a_hold_route_the_late_response_ends_the_doubt(
    start_worker: StartWorker, executor: ThreadPoolExecutor, effects: Effects
) -> None:
    frozen, future, other = freeze_at(start_worker, executor, "after-effect", "/hold")
    doubt = request_until_decided(other, "/hold")
    frozen.thaw()

    own = future.result()
    assert (doubt.status, doubt.problem) == (409, "in-doubt")
    assert (own.status, own.replayed) == (201, False)
    assert [worker.send_request("/hold", KEY).same for worker in (frozen, other)] == [own.same] * 2
    assert len(effects.of(KEY)) == 1


@pytest.mark.parametrize(
    ("point", "nth"),
    [("after-effect", 1), ("before-append", 1), ("streaming", 2), ("streaming", PIECES), ("before-settle", 1)],
)
def test_on_a_hold_route_a_late_body_is_recorded_whole_or_not_at_all(
    start_worker: StartWorker, executor: ThreadPoolExecutor, effects: Effects, point: str, nth: int
) -> None:
    frozen, future, other = freeze_at(start_worker, executor, point, "/hold-stream", nth)
    doubt = request_until_decided(other, "/hold-stream")
    frozen.thaw()

    own = None if future.exception() else future.result().same
    later = [worker.send_request("/hold-stream", KEY) for worker in (frozen, other)]
    whole = (201, whole_body(effects.of(KEY)[0].token))
    assert (doubt.status, doubt.problem) == (409, "in-doubt")
    assert own in (None, whole)
    assert later[0].same == later[1].same
    # A response that a client received completely is the outcome; a cut one may be recorded completely or be in doubt.
    assert later[0].same == whole or (own is None and later[0].problem == "in-doubt")
    assert len(effects.of(KEY)) == 1


def test_a_worker_frozen_after_settling_sends_what_it_settled(
    start_worker: StartWorker, executor: ThreadPoolExecutor, effects: Effects
) -> None:
    frozen, future, other = freeze_at(start_worker, executor, "after-settle", "/repeat")
    replayed = request_until_decided(other, "/repeat")
    frozen.thaw()

    assert (replayed.status, replayed.replayed) == (201, True)
    assert future.result().same == replayed.same
    assert len(effects.of(KEY)) == 1


def test_when_the_worker_that_took_over_dies_the_thawed_worker_says_so_at_once(
    start_worker: StartWorker, executor: ThreadPoolExecutor, effects: Effects
) -> None:
    frozen, future, _ = freeze_at(start_worker, executor, "after-effect", "/repeat")
    second = start_worker(fault_at("after-effect", "crash"), lease_seconds=300.0)

    def has_happened_again() -> bool:
        try:
            second.send_request("/repeat", KEY, wait=5)
        except OSError:
            second.wait_until_gone()
        return len(effects.of(KEY)) == 2

    until(has_happened_again, "nobody takes over")
    start = time.monotonic()
    frozen.thaw()

    answer = future.result()
    assert (answer.status, answer.problem, answer.retry_after) == (409, "conflict", "1")
    # A retry takes over at once, without waiting for a lease.
    assert time.monotonic() - start < 5.0
    assert request_until_decided(frozen, "/repeat").status == 201
    assert len(effects.of(KEY)) == 3
