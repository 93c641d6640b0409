"""The handler's own transaction contains its effect and its response: exactly once, wherever the process dies."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from examples.demo.shop import Shop
from tests.http.behaviour.conftest import ASGI_AND_WSGI, EVERY, SQL, StartServer, for_each, on
from tests.http.behaviour.demo_server import BUSY, DemoServer, assert_problem, is_replay, new_name


def bound(server: DemoServer, name: str, key: str | None, plan: object = None) -> httpx.Response:
    return server.post(f"/api/bound/{name}", key, json=plan or {})


def sold(server: DemoServer, name: str) -> int:
    return Shop(server.store).sold(name)


@on(EVERY, SQL)
def test_a_sale_and_its_response_commit_together(server: DemoServer) -> None:
    item, key = new_name(), new_name()
    sale = {"item": item, "amount": 7}

    answers = [server.post("/api/sales", key, json=sale) for _ in range(2)]

    assert [answer.status_code for answer in answers] == [201, 201], answers[0].text
    assert answers[0].content == answers[1].content
    assert answers[0].json() == {"buyer": "ada", **sale}
    assert is_replay(answers[1])
    assert sold(server, item) == 1


@on(EVERY, SQL)
def test_the_client_gets_exactly_what_was_settled(server: DemoServer) -> None:
    name, key = new_name(), new_name()
    plan = {"status": 201, "headers": {"Location": "/sales/1"}, "size": 200_000}

    first, again = bound(server, name, key, plan), bound(server, name, key, plan)

    assert (first.status_code, first.headers["location"]) == (201, "/sales/1")
    assert (again.status_code, again.headers["location"]) == (201, "/sales/1")
    assert first.headers["content-type"] == again.headers["content-type"]
    assert first.content == again.content
    assert sold(server, name) == 1


@on(EVERY, SQL)
def test_a_transaction_that_rolls_back_leaves_nothing_and_runs_again(server: DemoServer) -> None:
    name, key = new_name(), new_name()
    plan = {"turns": [{"before_commit": {"fail": True}}, {"before_settle": {"fail": True}}, {}]}

    answers = [bound(server, name, key, plan) for _ in range(4)]

    assert [answer.status_code for answer in answers] == [500, 500, 200, 200]
    assert is_replay(answers[3])
    assert sold(server, name) == 1


@on(ASGI_AND_WSGI, SQL)
def test_without_a_key_binding_changes_nothing(server: DemoServer) -> None:
    name = new_name()

    answers = [bound(server, name, None) for _ in range(2)]

    assert [answer.status_code for answer in answers] == [200, 200]
    assert sold(server, name) == 2


@on(ASGI_AND_WSGI, SQL)
def test_binding_without_settling_is_logged_as_an_error_and_settles_as_usual(server: DemoServer) -> None:
    name, key = new_name(), new_name()

    answers = [bound(server, name, key, {"forget": True}) for _ in range(2)]

    assert [answer.status_code for answer in answers] == [200, 200]
    assert is_replay(answers[1])
    assert sold(server, name) == 1
    assert "ERROR" in server.wait_for_log("settle")


@on(ASGI_AND_WSGI, SQL)
def test_an_exception_after_the_commit_does_not_undo_the_response(server: DemoServer) -> None:
    name, key = new_name(), new_name()
    plan = {"after_commit": {"fail": True}}

    bound(server, name, key, plan)
    again = bound(server, name, key, plan)

    assert again.status_code == 200
    assert is_replay(again)
    assert sold(server, name) == 1


@on(ASGI_AND_WSGI, ("postgres",))
def test_duplicates_are_busy_while_the_transaction_is_open(server: DemoServer) -> None:
    name, key = new_name(), new_name()
    plan = {"before_commit": {"gate": name}}
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(bound, server, name, key, plan)
        server.gates.wait_until_reached(name)
        busy = bound(server, name, key, plan)
        server.gates.open(name)
        first = running.result()

    assert_problem(busy, *BUSY)
    assert bound(server, name, key, plan).content == first.content
    assert sold(server, name) == 1


@for_each(ASGI_AND_WSGI, SQL)
@pytest.mark.parametrize("point", ["before_settle", "before_commit", "after_commit"])
def test_kill_9_at_any_point_leaves_one_sale_and_one_response(
    start_server: StartServer, framework: str, store: str, point: str
) -> None:
    server = start_server(framework, store)
    name, key = new_name(), new_name()
    plan = {"turns": [{point: {"gate": name}}, {}]}
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(bound, server, name, key, plan)
        server.gates.wait_until_reached(name)
        server.kill()
        with pytest.raises(httpx.TransportError):
            running.result()
    server.start()

    answers = [bound(server, name, key, plan) for _ in range(2)]

    assert [answer.status_code for answer in answers] == [200, 200]
    assert answers[0].content == answers[1].content
    assert sold(server, name) == 1
    assert server.runs(name) == (1 if point == "after_commit" else 2)
