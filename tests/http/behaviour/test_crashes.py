"""kill -9 in the handler, and the retry that follows. The retry does not wait for the lease."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from tests.http.behaviour.conftest import ASGI_AND_WSGI, EVERY, SHARED, StartServer, few, for_each
from tests.http.behaviour.demo_server import BUSY, DemoServer, assert_problem, is_replay, new_name

each = for_each(few("starlette", "flask", "django-asgi", of=EVERY), SHARED)


def kill_in_the_handler(server: DemoServer, name: str, key: str, plan: object, rule: str = "plain") -> None:
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(server.trial, name, key, plan, rule=rule)
        server.gates.wait_until_reached(name)
        server.kill()
        with pytest.raises(httpx.TransportError):
            running.result()


@each
def test_a_retry_after_kill_9_runs_again_and_has_one_outcome(
    start_server: StartServer, framework: str, store: str
) -> None:
    server = start_server(framework, store)
    name, key = new_name(), new_name()
    plan = {"turns": [{"gate": name}, {"status": 201}]}
    kill_in_the_handler(server, name, key, plan)
    server.start()

    answers = [server.trial(name, key, plan) for _ in range(2)]

    assert [answer.status_code for answer in answers] == [201, 201]
    assert answers[0].content == answers[1].content
    assert [is_replay(answer) for answer in answers] == [False, True]
    assert server.runs(name) == 2


@each
def test_on_a_hold_route_a_retry_after_kill_9_is_in_doubt(
    start_server: StartServer, framework: str, store: str
) -> None:
    server = start_server(framework, store)
    name, key = new_name(), new_name()
    kill_in_the_handler(server, name, key, {"gate": name}, "hold")
    server.start()

    answers = [server.trial(name, key, {"gate": name}, rule="hold") for _ in range(2)]

    for answer in answers:
        assert_problem(answer, 409, "in-doubt")
    assert server.runs(name) == 1


@for_each(few("starlette", of=EVERY), SHARED)
def test_a_duplicate_waiting_in_another_process_takes_over_when_the_first_is_killed(
    start_server: StartServer, framework: str, store: str
) -> None:
    first = start_server(framework, store)
    second = start_server(framework, first.store)
    name, key = new_name(), new_name()
    plan = {"turns": [{"gate": name}, {"status": 201}]}
    with ThreadPoolExecutor(2) as pool:
        running = pool.submit(first.trial, name, key, plan, rule="patient")
        first.gates.wait_until_reached(name)
        # The second has a world of its own, in which the plan's first turn has happened, too.
        second.world.happen("trial", name)
        waiting = pool.submit(second.trial, name, key, plan, rule="patient")
        assert_problem(second.trial(name, key, plan, rule="patient", headers={"Prefer": "wait=0"}), *BUSY)
        first.kill()
        with pytest.raises(httpx.TransportError):
            running.result()

        assert waiting.result().status_code == 201

    assert is_replay(second.trial(name, key, plan, rule="patient"))


@for_each(ASGI_AND_WSGI, few("sqlite", of=SHARED))
def test_the_response_outlives_the_server(start_server: StartServer, framework: str, store: str) -> None:
    server = start_server(framework, store)
    name, key = new_name(), new_name()
    first = server.trial(name, key, {"size": 200_000})

    server.kill()
    server.start()

    assert server.trial(name, key, {"size": 200_000}).content == first.content
    assert server.runs(name) == 1
