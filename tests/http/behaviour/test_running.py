"""During the first request: duplicates wait or get 409, clients disconnect, leases are renewed."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from tests.backends import ONE_OF_EACH_KIND
from tests.http.behaviour.conftest import (
    ASGI_AND_WSGI,
    ASGI_RESPONSES,
    EVERY,
    SHARED,
    StartServer,
    at,
    few,
    for_each,
    on,
    on_both_sides,
    on_the_diagonal,
)
from tests.http.behaviour.demo_server import BUSY, DemoServer, assert_problem, is_replay, new_name
from tests.waiting import until

PREFER = {"Prefer": "wait=30"}


def finished(server: DemoServer, name: str, key: str, plan: object, rule: str = "plain") -> httpx.Response:
    """Retry until the request no longer runs, and return the response."""
    answers: list[httpx.Response] = []

    def done() -> bool:
        answers.append(server.trial(name, key, plan, rule=rule))
        return "retry-after" not in answers[-1].headers

    until(done, "the request never ended")
    return answers[-1]


@on_the_diagonal
def test_duplicates_that_prefer_to_wait_all_get_the_same_response(server: DemoServer) -> None:
    name, key = new_name(), new_name()
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(server.trial, name, key, {"gate": name}, headers=PREFER) for _ in range(8)]
        server.gates.wait_until_reached(name)
        server.gates.open(name)
        answers = [answer.result() for answer in asked]

    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.content for answer in answers}) == 1
    assert sum(is_replay(answer) for answer in answers) == 7
    assert server.runs(name) == 1


@on_both_sides
def test_a_wait_that_times_out_ends_with_409(server: DemoServer) -> None:
    name, key = new_name(), new_name()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(server.trial, name, key, {"gate": name})
        server.gates.wait_until_reached(name)
        start = time.monotonic()
        answer = server.trial(name, key, {"gate": name}, headers={"Prefer": "wait=1"})
        waited = time.monotonic() - start
        server.gates.open(name)
        running.result()

    assert_problem(answer, *BUSY)
    assert waited >= 0.9


@on(few("starlette", "flask", "litestar", of=EVERY))
def test_a_waiting_duplicate_takes_over_as_soon_as_the_first_fails(server: DemoServer) -> None:
    name, key = new_name(), new_name()
    plan = {"turns": [{"gate": name, "fail": True}, {"status": 201}]}
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(server.trial, name, key, plan, rule="patient")
        server.gates.wait_until_reached(name)
        waiting = pool.submit(server.trial, name, key, plan, rule="patient")
        start = time.monotonic()
        server.gates.open(name)

        assert first.result().status_code == 500
        assert waiting.result().status_code == 201
        assert time.monotonic() - start < 10.0, "it does not sit out the lease"

    assert server.runs(name) == 2


# Where the handler runs on the loop, in a thread beside it, and without one.
@at(("starlette", "sqlite"), ("django-asgi", "redis"), ("flask", "postgres"))
def test_a_handler_slower_than_its_lease_is_not_taken_over(server: DemoServer) -> None:
    name, key = new_name(), new_name()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(server.trial, name, key, {"gate": name}, rule="hasty")
        server.gates.wait_until_reached(name)
        deadline = time.monotonic() + 1.1  # more than twice the lease of this route
        statuses = set()
        while time.monotonic() < deadline:
            statuses.add(server.trial(name, key, {"gate": name}, rule="hasty").status_code)
        server.gates.open(name)
        first = running.result()

    assert statuses == {409}
    assert first.status_code == 200
    assert server.trial(name, key, {"gate": name}, rule="hasty").content == first.content
    assert server.runs(name) == 1


@at(("starlette", "sqlite"), ("flask", "postgres"))
def test_a_stream_longer_than_its_lease_is_not_taken_over(server: DemoServer) -> None:
    name, key = new_name(), new_name()
    plan = {"parts": ["%", {"gate": name}, " and its end"]}
    with ThreadPoolExecutor(2) as pool:
        running = pool.submit(server.trial, name, key, plan, rule="hasty")
        server.gates.wait_until_reached(name)
        joined = pool.submit(server.trial, name, key, plan, rule="hasty")
        time.sleep(1.1)  # more than twice the lease of this route, while the stream is silent
        again = pool.submit(server.trial, name, key, plan, rule="hasty")
        server.gates.open(name)

        assert joined.result().content == again.result().content == running.result().content

    assert running.result().text.endswith(" and its end")
    assert server.runs(name) == 1


@on_the_diagonal
def test_a_client_that_disconnects_gets_the_response_on_retry(server: DemoServer) -> None:
    name, key = new_name(), new_name()
    plan = {"gate": name, "status": 201}
    server.raw(f"/api/trials/plain/{name}", key, plan).close()
    server.gates.wait_until_reached(name)

    busy = server.trial(name, key, plan)
    server.gates.open(name)
    answer = finished(server, name, key, plan)

    assert_problem(busy, *BUSY)
    assert answer.status_code == 201
    assert is_replay(answer)
    assert server.runs(name) == 1


@on_the_diagonal
def test_a_client_that_disconnects_during_a_stream_gets_all_of_it_on_retry(server: DemoServer) -> None:
    name, key = new_name(), new_name()
    plan = {"parts": ["first ", {"gate": name}, "second ", "x" * 100_000, " last"]}
    connection = server.raw(f"/api/trials/plain/{name}", key, plan)
    while b"first" not in connection.recv(65536):
        pass
    connection.close()
    server.gates.wait_until_reached(name)

    server.gates.open(name)
    answer = finished(server, name, key, plan)

    assert answer.text == "first second " + "x" * 100_000 + " last"
    assert is_replay(answer)
    assert server.runs(name) == 1


@on(ASGI_RESPONSES, few("sqlite", of=ONE_OF_EACH_KIND))
def test_a_slow_background_task_does_not_delay_duplicates(server: DemoServer) -> None:
    name, key = new_name(), new_name()
    plan = {"background": {"gate": name}}
    first = server.trial(name, key, plan)
    server.gates.wait_until_reached(name)

    again = server.trial(name, key, plan)
    server.gates.open(name)

    assert again.content == first.content
    assert is_replay(again)


@on(ASGI_RESPONSES, few("sqlite", of=ONE_OF_EACH_KIND))
def test_a_failing_background_task_does_not_free_the_key(server: DemoServer) -> None:
    name, key = new_name(), new_name()
    plan = {"background": {"reached": name, "fail": True}}
    first = server.trial(name, key, plan)
    server.gates.wait_until_reached(name)

    again = server.trial(name, key, plan)

    assert again.content == first.content
    assert is_replay(again)
    assert server.runs(name) == 1


@on(few("starlette", of=ASGI_RESPONSES), few("sqlite", "redis", of=ONE_OF_EACH_KIND))
@pytest.mark.parametrize("end", ["cancelled", "silent"])
def test_a_handler_that_is_cancelled_or_sends_no_response_runs_again_if_repeatable(
    server: DemoServer, end: str
) -> None:
    name, key = new_name(), new_name()

    first = server.post(f"/api/{end}/plain/{name}", key)
    again = server.post(f"/api/{end}/plain/{name}", key)

    assert first.status_code >= 500
    assert (again.status_code, again.text) == (200, "done")
    assert server.runs(name) == 2


@on(few("starlette", of=ASGI_RESPONSES), few("sqlite", "redis", of=ONE_OF_EACH_KIND))
@pytest.mark.parametrize("end", ["cancelled", "silent"])
def test_a_handler_that_is_cancelled_or_sends_no_response_is_in_doubt_on_a_hold_route(
    server: DemoServer, end: str
) -> None:
    name, key = new_name(), new_name()

    first = server.post(f"/api/{end}/hold/{name}", key)
    again = server.post(f"/api/{end}/hold/{name}", key)

    assert first.status_code >= 500
    assert_problem(again, 409, "in-doubt")
    assert server.runs(name) == 1


@for_each(ASGI_AND_WSGI, few("sqlite", of=SHARED))
def test_sigterm_lets_the_running_request_finish_and_stores_its_response(
    start_server: StartServer, framework: str, store: str
) -> None:
    server = start_server(framework, store)
    name, key = new_name(), new_name()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(server.trial, name, key, {"gate": name})
        server.gates.wait_until_reached(name)
        server.terminate()
        server.gates.open(name)
        first = running.result()
    server.wait_for_end()
    server.start()

    assert first.status_code == 200
    assert server.trial(name, key, {"gate": name}).content == first.content
    assert server.runs(name) == 1
