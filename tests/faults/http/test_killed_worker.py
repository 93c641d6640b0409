"""kill -9 at a named point of a request, and a retry at once at another worker.

The lease is the usual five minutes: a retry that had to wait for it would not end within the test.
"""

from __future__ import annotations

import psycopg
import pytest
from tests.backends import BACKENDS
from tests.faults.http.conftest import StartWorker
from tests.faults.http.http_worker_process import Worker
from tests.faults.http.worker import PIECES, whole_body
from tests.faults.worker_process import Effects

from onceward.testing import fault_at

KEY = "order-1"


def crash_at(start_worker: StartWorker, point: str, path: str, nth: int = 1) -> Worker:
    """Kill a worker at this point of a request. Return another one on the same store."""
    doomed, other = start_worker(fault_at(point, "crash", nth)), start_worker()
    with pytest.raises(OSError, match=r"."):
        doomed.send_request(path, KEY)
    doomed.wait_until_gone()
    return other


@pytest.mark.parametrize(
    ("point", "runs"),
    [("after-begin", 1), ("before-effect", 1), ("after-effect", 2), ("before-settle", 2)],
)
@pytest.mark.parametrize("path", ["/repeat", "/stream"])
def test_a_repeatable_request_runs_again_at_once_and_everyone_gets_its_response(
    start_worker: StartWorker, effects: Effects, point: str, runs: int, path: str
) -> None:
    other = crash_at(start_worker, point, path)

    first, again = other.send_request(path, KEY), other.send_request(path, KEY)

    assert (first.status, first.replayed) == (201, False)
    assert (again.same, again.replayed) == (first.same, True)
    ran = effects.of(KEY)
    assert len(ran) == runs
    assert ran[-1].token.encode() in first.body
    assert len({run.version for run in ran}) == runs


@pytest.mark.parametrize(
    ("point", "runs"),
    [("after-begin", 0), ("before-effect", 0), ("after-effect", 1), ("before-settle", 1)],
)
@pytest.mark.parametrize("path", ["/hold", "/hold-stream"])
def test_a_request_that_may_not_be_repeated_is_in_doubt_for_every_retry(
    start_worker: StartWorker, effects: Effects, point: str, runs: int, path: str
) -> None:
    other = crash_at(start_worker, point, path)

    answers = [other.send_request(path, KEY) for _ in range(2)]

    for answer in answers:
        assert (answer.status, answer.problem, answer.retry_after) == (409, "in-doubt", None)
    assert len(effects.of(KEY)) == runs


@pytest.mark.parametrize("path", ["/repeat", "/hold", "/stream", "/hold-stream"])
def test_a_response_that_was_settled_but_never_sent_is_replayed(
    start_worker: StartWorker, effects: Effects, path: str
) -> None:
    other = crash_at(start_worker, "after-settle", path)

    answers = [other.send_request(path, KEY) for _ in range(2)]

    assert [answer.status for answer in answers] == [201, 201]
    assert all(answer.replayed for answer in answers)
    assert answers[0].body == answers[1].body
    (only,) = effects.of(KEY)
    assert only.token.encode() in answers[0].body


@pytest.mark.parametrize("nth", [2, PIECES - 2, PIECES])
def test_a_body_cut_short_by_a_kill_comes_whole_from_the_retry(
    start_worker: StartWorker, effects: Effects, nth: int
) -> None:
    other = crash_at(start_worker, "streaming", "/stream", nth)

    first, again = other.send_request("/stream", KEY), other.send_request("/stream", KEY)

    assert first.body == whole_body(effects.of(KEY)[-1].token)
    assert (again.same, again.replayed) == (first.same, True)
    assert len(effects.of(KEY)) == 2


def test_a_body_cut_short_by_a_kill_is_in_doubt_where_it_may_not_be_repeated(
    start_worker: StartWorker, effects: Effects
) -> None:
    other = crash_at(start_worker, "streaming", "/hold-stream", PIECES - 2)

    answer = other.send_request("/hold-stream", KEY)

    assert (answer.status, answer.problem) == (409, "in-doubt")
    assert len(effects.of(KEY)) == 1


@pytest.mark.parametrize("backend", [BACKENDS["postgres"]], ids=["postgres"])
@pytest.mark.parametrize(
    ("point", "replayed"),
    [("before-effect", False), ("after-effect", False), ("sale-settled", False), ("sale-committed", True)],
)
def test_a_bound_effect_happens_exactly_once_wherever_the_kill_falls(
    start_worker: StartWorker, store_url: str, point: str, replayed: bool
) -> None:
    other = crash_at(start_worker, point, "/once")

    first, again = other.send_request("/once", KEY, wait=30), other.send_request("/once", KEY)

    assert (first.status, first.replayed) == (201, replayed)
    assert (again.same, again.replayed) == (first.same, True)
    assert sold(store_url) == [(KEY, first.body)]


def sold(database: str) -> list[tuple[str, bytes]]:
    """Return every sale with its response, and delete them."""
    with psycopg.connect(database) as connection:
        rows = connection.execute("DELETE FROM sales RETURNING key, token").fetchall()
    return [(key, f'{{"token":"{token}"}}'.encode()) for key, token in rows]
