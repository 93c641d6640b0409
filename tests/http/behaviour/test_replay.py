"""Replays and duplicates, under every framework and on every store, over real sockets."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.http.behaviour.conftest import everywhere, on_the_diagonal
from tests.http.behaviour.demo_server import BUSY, MISMATCH, DemoServer, assert_problem, is_replay, new_name

DUPLICATES = 20


@everywhere
def test_a_retry_replays_the_first_response(server: DemoServer) -> None:
    name, key = new_name(), new_name()

    first = server.trial(name, key, {"status": 201, "headers": {"X-Colour": "blue"}})
    again = server.trial(name, key, {"status": 201, "headers": {"X-Colour": "blue"}})

    assert (first.status_code, again.status_code) == (201, 201)
    assert first.content == again.content
    assert again.headers["x-colour"] == "blue"
    assert (is_replay(first), is_replay(again)) == (False, True)
    assert server.runs(name) == 1


@everywhere
def test_twenty_concurrent_duplicates_run_once(server: DemoServer) -> None:
    name, key = new_name(), new_name()
    with ThreadPoolExecutor(DUPLICATES) as pool:
        asked = [pool.submit(server.trial, name, key, {"gate": name}) for _ in range(DUPLICATES)]
        server.gates.wait_until_reached(name)
        busy = server.trial(name, key, {"gate": name})
        server.gates.open(name)
        answers = [answer.result() for answer in asked]

    assert_problem(busy, *BUSY)
    assert int(busy.headers["retry-after"]) >= 1
    assert server.runs(name) == 1
    token = server.trial(name, key, {"gate": name}).json()["token"]
    assert {answer.json()["token"] for answer in answers if answer.status_code == 200} == {token}
    assert {answer.status_code for answer in answers} <= {200, 409}


@everywhere
def test_another_user_with_the_same_key_gets_a_separate_run(server: DemoServer) -> None:
    name, key = new_name(), new_name()

    ada = server.trial(name, key, user="ada")
    bob = server.trial(name, key, user="bob")

    assert ada.json()["token"] != bob.json()["token"]
    assert server.runs(name) == 2
    assert server.trial(name, key, user="bob").content == bob.content
    assert server.trial(name, key, user="ada").content == ada.content


@everywhere
def test_the_same_key_with_another_request_is_refused_afterwards(server: DemoServer) -> None:
    name, key = new_name(), new_name()
    first = server.trial(name, key, {"status": 200})

    other_body = server.trial(name, key, {"status": 202})
    other_path = server.trial(new_name(), key, {"status": 200})
    other_query = server.post(f"/api/trials/plain/{name}?again=1", key, json={"status": 200})
    other_method = server.send("PUT", f"/api/trials/plain/{name}", key, json={"status": 200})

    for refused in (other_body, other_path, other_query, other_method):
        assert_problem(refused, *MISMATCH)
        assert "retry-after" not in refused.headers
    assert server.runs(name) == 1
    assert server.trial(name, key, {"status": 200}).content == first.content


@everywhere
def test_the_same_key_with_another_request_is_refused_while_the_first_runs(server: DemoServer) -> None:
    name, key = new_name(), new_name()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(server.trial, name, key, {"gate": name})
        server.gates.wait_until_reached(name)
        other = server.trial(name, key, {"status": 202})
        server.gates.open(name)

        assert running.result().status_code == 200

    assert_problem(other, *MISMATCH)
    assert server.runs(name) == 1


@everywhere
def test_an_exception_lets_the_retry_run_again(server: DemoServer) -> None:
    name, key = new_name(), new_name()
    plan = {"turns": [{"fail": True}, {"status": 201}]}

    answers = [server.trial(name, key, plan) for _ in range(3)]

    assert [answer.status_code for answer in answers] == [500, 201, 201]
    assert [is_replay(answer) for answer in answers] == [False, False, True]
    assert server.runs(name) == 2


@on_the_diagonal
def test_without_a_key_nothing_is_checked(server: DemoServer) -> None:
    name = new_name()

    answers = [server.trial(name, None) for _ in range(2)]

    assert answers[0].json()["token"] != answers[1].json()["token"]
    assert answers[0].json()["key"] is None
    assert server.runs(name) == 2


@on_the_diagonal
@pytest.mark.parametrize("method", ["GET", "DELETE"])
def test_get_and_delete_ignore_the_header(server: DemoServer, method: str) -> None:
    name, key = new_name(), new_name()

    answers = [server.send(method, f"/api/trials/plain/{name}", key) for _ in range(2)]

    assert [answer.status_code for answer in answers] == [200, 200]
    assert not any(is_replay(answer) for answer in answers)
    assert server.runs(name) == 2


@on_the_diagonal
@pytest.mark.parametrize("method", ["PUT", "PATCH"])
def test_put_and_patch_are_protected_like_post(server: DemoServer, method: str) -> None:
    name, key = new_name(), new_name()

    answers = [server.send(method, f"/api/trials/plain/{name}", key, json={}) for _ in range(2)]

    assert answers[0].content == answers[1].content
    assert is_replay(answers[1])
    assert server.runs(name) == 1


@on_the_diagonal
def test_the_handler_can_read_its_own_operation(server: DemoServer) -> None:
    name, key = new_name(), new_name()
    plan = {"turns": [{"status": 503}, {}]}

    failed = server.trial(name, key, plan).json()
    done = server.trial(name, key, plan).json()

    assert (failed["key"], done["key"]) == (key, key)
    assert (failed["attempt"], done["attempt"]) == (1, 2)
    assert 0 < failed["version"] < done["version"]


@on_the_diagonal
def test_headers_that_only_choose_the_response_format_do_not_make_another_request(server: DemoServer) -> None:
    name, key = new_name(), new_name()

    first = server.trial(name, key, headers={"Accept-Encoding": "identity", "User-Agent": "one", "Accept": "*/*"})
    again = server.trial(name, key, headers={"Accept-Encoding": "gzip", "User-Agent": "two", "Accept": "text/html"})

    assert again.content == first.content
    assert is_replay(again)
