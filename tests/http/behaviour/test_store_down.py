"""The store goes down before, during and after the handler: no store, no effect, and never a false response."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Protocol

import pytest
from tests.http.behaviour.conftest import ASGI_AND_WSGI, StartServer
from tests.http.behaviour.demo_server import assert_problem, is_replay, new_name
from tests.servers.postgres import PostgresServer
from tests.servers.redis import RedisServer

frameworks = pytest.mark.parametrize("framework", ASGI_AND_WSGI)
# Short, so that a store that is down is found out soon.
STORE_SECONDS = 0.5


class StoreServer(Protocol):
    """A server that the test may stop and start."""

    def url(self) -> str: ...

    def start(self) -> None: ...

    def stop(self) -> None: ...


@pytest.fixture(scope="module")
def own_servers() -> Iterator[dict[str, StoreServer]]:
    with ExitStack() as stack:
        yield {
            "redis": stack.enter_context(RedisServer()),
            "postgres": stack.enter_context(PostgresServer()),
        }


@pytest.fixture(params=["redis", "postgres"])
def down(request: pytest.FixtureRequest, own_servers: dict[str, StoreServer]) -> Iterator[StoreServer]:
    server = own_servers[request.param]
    yield server
    server.start()


@frameworks
def test_before_the_handler_nothing_runs(start_server: StartServer, down: StoreServer, framework: str) -> None:
    server = start_server(framework, down.url(), store_seconds=STORE_SECONDS)
    name, key = new_name(), new_name()
    down.stop()

    refused = server.trial(name, key)
    unkeyed = server.trial(new_name(), None)
    down.start()
    answer = server.trial(name, key)

    assert_problem(refused, 503, "unavailable")
    assert int(refused.headers["retry-after"]) >= 1
    assert unkeyed.status_code == 200
    assert answer.status_code == 200
    assert server.runs(name) == 1


@frameworks
def test_during_the_handler_the_client_never_sees_success(
    start_server: StartServer, down: StoreServer, framework: str
) -> None:
    server = start_server(framework, down.url(), store_seconds=STORE_SECONDS, lease_seconds=2.0)
    name, key = new_name(), new_name()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(server.trial, name, key, {"gate": name})
        server.gates.wait_until_reached(name)
        down.stop()
        server.gates.open(name)
        first = running.result()
    down.start()

    answers = [server.trial(name, key, {"gate": name}, headers={"Prefer": "wait=30"}) for _ in range(2)]

    assert_problem(first, 503, "unavailable")
    assert [answer.status_code for answer in answers] == [200, 200]
    assert answers[0].content == answers[1].content
    assert is_replay(answers[1])


@frameworks
def test_after_the_handler_the_response_waits_for_the_store(
    start_server: StartServer, down: StoreServer, framework: str
) -> None:
    server = start_server(framework, down.url(), store_seconds=STORE_SECONDS)
    name, key = new_name(), new_name()
    first = server.trial(name, key)
    down.stop()

    refused = server.trial(name, key)
    down.start()
    again = server.trial(name, key)

    assert_problem(refused, 503, "unavailable")
    assert again.content == first.content
    assert is_replay(again)
    assert server.runs(name) == 1


@frameworks
def test_proceeding_without_the_store_is_an_option(
    start_server: StartServer, down: StoreServer, framework: str
) -> None:
    server = start_server(framework, down.url(), store_seconds=STORE_SECONDS, on_store_error="proceed")
    name, key = new_name(), new_name()
    down.stop()

    answers = [server.trial(name, key) for _ in range(2)]

    assert [answer.status_code for answer in answers] == [200, 200]
    assert not any(is_replay(answer) for answer in answers)
    assert server.runs(name) == 2
    assert "idempotency_store_failure" in server.log()
