"""Every write to the store, or its result, is lost once: no client notices."""

from __future__ import annotations

import itertools
from contextlib import closing
from pathlib import Path

import pytest
from tests.backends import Opener
from tests.faults.http.faulty_server import FaultyServer, expected

from onceward.store.open import open_store

# Every write that a request on a path makes.
WRITES = {
    "/small": {"begin", "settle"},
    "/large": {"begin", "append", "settle"},
    "/stream": {"begin", "append", "settle"},
    "/hold": {"begin", "settle"},
    "/hold-stream": {"begin", "append", "settle"},
    "/broken": {"begin", "fail"},
}


@pytest.mark.parametrize("path", WRITES)
def test_a_request_makes_exactly_these_writes(path: str) -> None:
    with closing(FaultyServer(open_store("memory:"))) as served:
        served.send_request(path, "order-1")

        points = {point.removeprefix("before-") for point in served.store.points if point.startswith("before-")}
        assert points == WRITES[path] | {"commit"}


# Once at each write of each path; and three times in a row, which takes its time, at each sort of write.
LOST = [
    (path, word, lost, times)
    for times, paths in ((1, [*WRITES]), (3, ["/large", "/broken"]))
    for path in paths
    for word, lost in itertools.product(sorted(WRITES[path]), ("request", "answer"))
]


def test_a_lost_message_is_repeated_and_nothing_runs_twice(make_store: Opener) -> None:
    with closing(FaultyServer(make_store())) as served:
        for path, word, lost, times in LOST:
            key = f"{path.strip('/')}-{word}-{lost}-{times}"
            lose = served.store.lose_request if lost == "request" else served.store.lose_answer
            lose(word, times)

            answer, again = served.send_request(path, key), served.send_request(path, key)

            assert not any(order.times for order in served.store._orders), f"{key}: nothing was lost"
            ran = [run.token for run in served.runs if run.key == key]
            if path == "/broken":
                assert (answer.status, again.status, len(ran)) == (500, 500, 2), key
            else:
                assert (answer.status, answer.replayed, len(ran)) == (201, False, 1), key
                assert answer.body == expected(path, ran[0]), key
                assert (again.same, again.replayed) == (answer.same, True), key


@pytest.mark.parametrize("word", ["begin", "settle"])
def test_a_lost_result_is_never_mistaken_for_another_callers_claim(tmp_path: Path, word: str) -> None:
    """The client would get 409 although no handler runs, if a caller took its own claim for another's."""
    with closing(FaultyServer(open_store(f"sqlite:///{tmp_path}/keys.db"))) as served:
        for number in range(20):
            served.store.lose_answer(word)

            answer = served.send_request("/hold", f"order-{number}")

            assert (answer.status, answer.replayed) == (201, False)
        assert set(served.counts().values()) == {1}


def test_a_body_whose_headers_cannot_be_stored_is_sent_and_never_run_again() -> None:
    with closing(FaultyServer(open_store("memory:"))) as served:
        answer, again = served.send_request("/wide", "order-1"), served.send_request("/wide", "order-1")

        assert answer.same == (201, expected("/wide", served.runs[0].token))
        assert (again.status, again.problem) == (409, "outcome-not-kept")
        assert len(served.runs) == 1
