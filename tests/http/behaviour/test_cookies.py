"""A client with a cookie jar behind a proxy that sets a new cookie on every response: a retry is never a second effect."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import httpx
from tests.backends import ONE_OF_EACH_KIND
from tests.http.behaviour.conftest import (
    ASGI_AND_WSGI,
    EVERY,
    StartServer,
    few,
    for_each,
    on_both_sides,
    on_the_diagonal,
)
from tests.http.behaviour.cookie_proxy import CookieProxy, cookie_proxy
from tests.http.behaviour.demo_server import (
    ANSWER_SECONDS_MAX,
    MISMATCH,
    DemoServer,
    assert_problem,
    is_replay,
    new_name,
)

CHANGED = (409, "principal-changed")


@contextmanager
def behind_proxy(server: DemoServer, lost: int = 1) -> Iterator[tuple[CookieProxy, httpx.Client]]:
    """The proxy, and a client that stores every cookie that it gets."""
    with (
        cookie_proxy(server.address, lost) as proxy,
        httpx.Client(base_url=proxy.url, timeout=ANSWER_SECONDS_MAX, trust_env=False) as jar,
    ):
        yield proxy, jar


def post(jar: httpx.Client, name: str, key: str, plan: object = None, **headers: str) -> httpx.Response:
    return jar.post(f"/api/trials/plain/{name}", json=plan or {}, headers={"Idempotency-Key": key, **headers})


def with_cookies(server: DemoServer, name: str, key: str, cookies: str, plan: object = None) -> httpx.Response:
    return server.trial(name, key, plan, user="", headers={"Cookie": cookies})


def assert_changed(response: httpx.Response) -> None:
    assert_problem(response, *CHANGED)
    assert "retry-after" not in response.headers
    assert not is_replay(response)
    assert set(response.json()) == {"type", "title", "status", "detail", "code"}
    detail = response.json()["detail"]
    assert 0 < detail.index("principal=") < detail.index("session_cookies=")


@on_the_diagonal
def test_with_a_bearer_token_new_cookies_change_nothing(server: DemoServer) -> None:
    name, key = new_name(), new_name()

    with behind_proxy(server) as (proxy, jar):
        answers = [post(jar, name, key, Authorization="Bearer ada-token") for _ in range(3)]

    assert proxy.cookies == ["", "balancer=node-1", "balancer=node-2"]
    assert [answer.status_code for answer in answers] == [502, 200, 200]
    assert is_replay(answers[1])
    assert answers[1].content == answers[2].content
    assert server.runs(name) == 1


@on_the_diagonal
def test_a_first_request_without_cookies_is_replayed_to_its_retry_with_cookies(server: DemoServer) -> None:
    name, key = new_name(), new_name()

    with behind_proxy(server) as (proxy, jar):
        answers = [post(jar, name, key) for _ in range(3)]

    assert proxy.cookies == ["", "balancer=node-1", "balancer=node-2"]
    assert [answer.status_code for answer in answers] == [502, 200, 200]
    assert is_replay(answers[1])
    assert is_replay(answers[2])
    assert server.runs(name) == 1


@on_the_diagonal
def test_changed_cookies_are_refused_and_never_cause_a_second_effect(server: DemoServer) -> None:
    name, key = new_name(), new_name()

    with behind_proxy(server) as (proxy, jar):
        jar.cookies.set("balancer", "node-0", domain="127.0.0.1")
        answers = [post(jar, name, key) for _ in range(2)]

    assert proxy.cookies == ["balancer=node-0", "balancer=node-1"]
    assert answers[0].status_code == 502
    assert_changed(answers[1])
    assert server.runs(name) == 1


@for_each(EVERY, few("sqlite", of=ONE_OF_EACH_KIND))
def test_with_session_cookies_other_cookies_change_nothing(
    start_server: StartServer, framework: str, store: str
) -> None:
    server = start_server(framework, store, session_cookies=["session"])
    name, key = new_name(), new_name()

    with behind_proxy(server) as (proxy, jar):
        jar.cookies.set("session", "ada-token", domain="127.0.0.1")
        answers = [post(jar, name, key) for _ in range(2)]
        jar.cookies.set("session", "bob-token", domain="127.0.0.1")
        bob = post(jar, name, key)

    assert [sorted(cookies.split("; ")) for cookies in proxy.cookies] == [
        ["session=ada-token"],
        ["balancer=node-1", "session=ada-token"],
        ["balancer=node-2", "session=bob-token"],
    ]
    assert answers[0].status_code == 502
    assert is_replay(answers[1])
    assert not is_replay(bob), "another session has keys of its own"
    assert server.runs(name) == 2


@on_both_sides
def test_the_order_of_cookies_does_not_matter(server: DemoServer) -> None:
    name, key = new_name(), new_name()

    first = with_cookies(server, name, key, "a=1; session=ada-token")
    again = with_cookies(server, name, key, "session=ada-token; a=1")

    assert is_replay(again)
    assert again.content == first.content


@on_the_diagonal
def test_other_cookies_are_refused_while_the_first_request_runs(server: DemoServer) -> None:
    name, key, gate = new_name(), new_name(), new_name()
    connection = server.raw(f"/api/trials/plain/{name}", key, {"gate": gate}, headers="Cookie: a=1\r\n", user="")
    server.gates.wait_until_reached(gate)

    other = with_cookies(server, name, key, "a=2", {"gate": gate})
    none = server.trial(name, key, {"gate": gate}, user="")
    same = with_cookies(server, name, key, "a=1", {"gate": gate})
    server.gates.open(gate)
    with connection:
        while connection.recv(65536):
            pass

    assert_changed(other)
    assert_changed(none)
    assert same.status_code == 409
    assert "retry-after" in same.headers
    assert server.runs(name) == 1


@on_the_diagonal
def test_other_cookies_are_refused_after_a_failure(server: DemoServer) -> None:
    name, key = new_name(), new_name()
    plan = {"turns": [{"status": 500}, {}]}
    with_cookies(server, name, key, "a=1", plan)

    other = with_cookies(server, name, key, "a=2", plan)
    same = with_cookies(server, name, key, "a=1", plan)

    assert_changed(other)
    assert same.json()["attempt"] == 2
    assert server.runs(name) == 2


@on_the_diagonal
def test_after_a_failure_without_cookies_a_retry_with_cookies_runs(server: DemoServer) -> None:
    name, key = new_name(), new_name()
    plan = {"turns": [{"status": 500}, {}]}
    server.trial(name, key, plan, user="")

    retry = with_cookies(server, name, key, "a=1", plan)
    again = with_cookies(server, name, key, "a=2", plan)

    assert retry.json()["attempt"] == 2
    assert again.content == retry.content
    assert server.runs(name) == 2


@on_both_sides
def test_changed_cookies_are_checked_before_the_request_fingerprint(server: DemoServer) -> None:
    name, key = new_name(), new_name()
    with_cookies(server, name, key, "a=1")

    other_cookies = with_cookies(server, name, key, "a=2", {"text": "other"})
    other_request = with_cookies(server, name, key, "a=1", {"text": "other"})

    assert_changed(other_cookies)
    assert_problem(other_request, *MISMATCH)


@on_both_sides
def test_another_request_under_a_key_used_without_cookies_is_a_reused_key(server: DemoServer) -> None:
    name, key = new_name(), new_name()
    server.trial(name, key, user="")

    assert_problem(with_cookies(server, name, key, "a=1", {"text": "other"}), *MISMATCH)


@on_both_sides
def test_cookies_count_beside_basic_credentials_that_many_may_share(server: DemoServer) -> None:
    name, key = new_name(), new_name()
    basic = {"Authorization": "basic c3RhZ2luZzpzZWNyZXQ="}

    first = server.trial(name, key, headers={**basic, "Cookie": "session=ada-token"})
    other = server.trial(name, key, headers={**basic, "Cookie": "session=bob-token"})

    assert first.status_code == 200
    assert_changed(other)


@for_each(ASGI_AND_WSGI, few("memory", of=ONE_OF_EACH_KIND))
def test_a_refusal_for_changed_cookies_is_explained_once_in_the_log(
    start_server: StartServer, framework: str, store: str
) -> None:
    server = start_server(framework, store)
    for _ in range(2):
        name, key = new_name(), new_name()
        with_cookies(server, name, key, "a=1")
        with_cookies(server, name, key, "a=2")

    log = server.wait_for_log("session_cookies=")
    assert log.count("idempotency_principal_changed") == 1
