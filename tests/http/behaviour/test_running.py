"""While the first request runs: duplicates wait or are told to, clients go away, leases are renewed."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from tests.backends import FOUR
from tests.http.behaviour.conftest import (
    ASGI_AND_WSGI,
    ASGI_RESPONSES,
    EVERY,
    SHARED,
    Serve,
    at,
    few,
    for_each,
    on,
    on_both_sides,
    on_the_diagonal,
)
from tests.http.serving import BUSY, Serving, assert_problem, is_replay, new_name
from tests.waiting import until

PREFER = {"Prefer": "wait=30"}


def finished(serving: Serving, name: str, key: str, plan: object, rule: str = "plain") -> httpx.Response:
    """The answer, asked for until the request no longer runs."""
    answers: list[httpx.Response] = []

    def done() -> bool:
        answers.append(serving.trial(name, key, plan, rule=rule))
        return "retry-after" not in answers[-1].headers

    until(done, "the request never ended")
    return answers[-1]


@on_the_diagonal
def test_duplicates_that_prefer_to_wait_all_get_the_one_answer(serving: Serving) -> None:
    name, key = new_name(), new_name()
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(serving.trial, name, key, {"gate": name}, headers=PREFER) for _ in range(8)]
        serving.gates.wait_until_reached(name)
        serving.gates.open(name)
        answers = [answer.result() for answer in asked]

    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.content for answer in answers}) == 1
    assert sum(is_replay(answer) for answer in answers) == 7
    assert serving.runs(name) == 1


@on_both_sides
def test_a_wait_that_is_over_ends_with_409(serving: Serving) -> None:
    name, key = new_name(), new_name()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(serving.trial, name, key, {"gate": name})
        serving.gates.wait_until_reached(name)
        start = time.monotonic()
        answer = serving.trial(name, key, {"gate": name}, headers={"Prefer": "wait=1"})
        waited = time.monotonic() - start
        serving.gates.open(name)
        running.result()

    assert_problem(answer, *BUSY)
    assert waited >= 0.9


@on(few("starlette", "flask", "litestar", of=EVERY))
def test_a_waiting_duplicate_takes_over_the_moment_the_first_fails(serving: Serving) -> None:
    name, key = new_name(), new_name()
    plan = {"turns": [{"gate": name, "fail": True}, {"status": 201}]}
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(serving.trial, name, key, plan, rule="patient")
        serving.gates.wait_until_reached(name)
        waiting = pool.submit(serving.trial, name, key, plan, rule="patient")
        start = time.monotonic()
        serving.gates.open(name)

        assert first.result().status_code == 500
        assert waiting.result().status_code == 201
        assert time.monotonic() - start < 10.0, "it does not sit out the lease"

    assert serving.runs(name) == 2


# Where the handler runs on the loop, in a thread beside it, and without one.
@at(("starlette", "sqlite"), ("django-asgi", "redis"), ("flask", "postgres"))
def test_a_handler_slower_than_its_lease_is_not_taken_over(serving: Serving) -> None:
    name, key = new_name(), new_name()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(serving.trial, name, key, {"gate": name}, rule="hasty")
        serving.gates.wait_until_reached(name)
        deadline = time.monotonic() + 1.1  # more than twice the lease of this route
        statuses = set()
        while time.monotonic() < deadline:
            statuses.add(serving.trial(name, key, {"gate": name}, rule="hasty").status_code)
        serving.gates.open(name)
        first = running.result()

    assert statuses == {409}
    assert first.status_code == 200
    assert serving.trial(name, key, {"gate": name}, rule="hasty").content == first.content
    assert serving.runs(name) == 1


@at(("starlette", "sqlite"), ("flask", "postgres"))
def test_a_stream_longer_than_its_lease_is_not_taken_over(serving: Serving) -> None:
    name, key = new_name(), new_name()
    plan = {"parts": ["%", {"gate": name}, " and its end"]}
    with ThreadPoolExecutor(2) as pool:
        running = pool.submit(serving.trial, name, key, plan, rule="hasty")
        serving.gates.wait_until_reached(name)
        joined = pool.submit(serving.trial, name, key, plan, rule="hasty")
        time.sleep(1.1)  # more than twice the lease of this route, while the stream is silent
        again = pool.submit(serving.trial, name, key, plan, rule="hasty")
        serving.gates.open(name)

        assert joined.result().content == again.result().content == running.result().content

    assert running.result().text.endswith(" and its end")
    assert serving.runs(name) == 1


@on_the_diagonal
def test_a_client_that_goes_away_finds_its_answer_on_retry(serving: Serving) -> None:
    name, key = new_name(), new_name()
    plan = {"gate": name, "status": 201}
    serving.raw(f"/api/trials/plain/{name}", key, plan).close()
    serving.gates.wait_until_reached(name)

    busy = serving.trial(name, key, plan)
    serving.gates.open(name)
    answer = finished(serving, name, key, plan)

    assert_problem(busy, *BUSY)
    assert answer.status_code == 201
    assert is_replay(answer)
    assert serving.runs(name) == 1


@on_the_diagonal
def test_a_client_that_goes_away_in_the_middle_of_a_stream_finds_all_of_it_on_retry(serving: Serving) -> None:
    name, key = new_name(), new_name()
    plan = {"parts": ["first ", {"gate": name}, "second ", "x" * 100_000, " last"]}
    connection = serving.raw(f"/api/trials/plain/{name}", key, plan)
    while b"first" not in connection.recv(65536):
        pass
    connection.close()
    serving.gates.wait_until_reached(name)

    serving.gates.open(name)
    answer = finished(serving, name, key, plan)

    assert answer.text == "first second " + "x" * 100_000 + " last"
    assert is_replay(answer)
    assert serving.runs(name) == 1


@on(ASGI_RESPONSES, few("sqlite", of=FOUR))
def test_a_slow_background_task_keeps_nobody_waiting(serving: Serving) -> None:
    name, key = new_name(), new_name()
    plan = {"background": {"gate": name}}
    first = serving.trial(name, key, plan)
    serving.gates.wait_until_reached(name)

    again = serving.trial(name, key, plan)
    serving.gates.open(name)

    assert again.content == first.content
    assert is_replay(again)


@on(ASGI_RESPONSES, few("sqlite", of=FOUR))
def test_a_failing_background_task_does_not_free_the_key(serving: Serving) -> None:
    name, key = new_name(), new_name()
    plan = {"background": {"reached": name, "fail": True}}
    first = serving.trial(name, key, plan)
    serving.gates.wait_until_reached(name)

    again = serving.trial(name, key, plan)

    assert again.content == first.content
    assert is_replay(again)
    assert serving.runs(name) == 1


@on(few("starlette", of=ASGI_RESPONSES), few("sqlite", "redis", of=FOUR))
@pytest.mark.parametrize("end", ["cancelled", "silent"])
def test_a_handler_that_is_cancelled_or_says_nothing_may_run_again_where_that_is_allowed(
    serving: Serving, end: str
) -> None:
    name, key = new_name(), new_name()

    first = serving.post(f"/api/{end}/plain/{name}", key)
    again = serving.post(f"/api/{end}/plain/{name}", key)

    assert first.status_code >= 500
    assert (again.status_code, again.text) == (200, "done")
    assert serving.runs(name) == 2


@on(few("starlette", of=ASGI_RESPONSES), few("sqlite", "redis", of=FOUR))
@pytest.mark.parametrize("end", ["cancelled", "silent"])
def test_a_handler_that_is_cancelled_or_says_nothing_is_in_doubt_on_a_hold_route(serving: Serving, end: str) -> None:
    name, key = new_name(), new_name()

    first = serving.post(f"/api/{end}/hold/{name}", key)
    again = serving.post(f"/api/{end}/hold/{name}", key)

    assert first.status_code >= 500
    assert_problem(again, 409, "in-doubt")
    assert serving.runs(name) == 1


@for_each(ASGI_AND_WSGI, few("sqlite", of=SHARED))
def test_sigterm_lets_the_running_request_end_and_keeps_its_answer(serve: Serve, framework: str, store: str) -> None:
    serving = serve(framework, store)
    name, key = new_name(), new_name()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(serving.trial, name, key, {"gate": name})
        serving.gates.wait_until_reached(name)
        serving.ask_to_end()
        serving.gates.open(name)
        first = running.result()
    serving.wait_for_end()
    serving.start()

    assert first.status_code == 200
    assert serving.trial(name, key, {"gate": name}).content == first.content
    assert serving.runs(name) == 1
