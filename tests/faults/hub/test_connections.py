"""A PostgreSQL whose connections are all taken: a 503 within seconds, nothing written, and the hub recovers."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest
from tests.faults.hub.followers import SocketFollower
from tests.faults.hub.test_store_outages import TOPICS, assert_unavailable
from tests.faults.hub_database import connected_to, written
from tests.hub.hub_process import running_hub
from tests.hub.raw_client import Caller
from tests.servers.postgres import PostgresServer
from tests.waiting import until

MAX_CONNECTIONS = 20
# A worker keeps to its setting. The ledger has one more.
DATABASE_CONNECTIONS = 6
# For four requests, one after the other. Today's default of a pooler would be 120 for each.
ANSWER_SECONDS_MAX = 15.0
_OF_HUB = "FROM pg_stat_activity WHERE application_name = 'onceward'"


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        with psycopg.connect(server.url(), autocommit=True) as owner:
            owner.execute(f"ALTER SYSTEM SET max_connections = {MAX_CONNECTIONS}".encode())
        server.stop()
        server.start()
        yield server


def test_a_server_without_a_free_connection_is_reported_within_seconds_and_the_hub_recovers(
    server: PostgresServer, tmp_path: Path
) -> None:
    url = server.create_database()
    settings = {"ONCEWARD_HUB__DATABASE_CONNECTIONS": str(DATABASE_CONNECTIONS)}
    with (
        psycopg.connect(server.url(), autocommit=True) as owner,
        running_hub(data_dir=tmp_path / "data", args=["--database", url], env=settings) as hub,
    ):
        ask = Caller(hub.port)
        most = _most_connections_under_load(owner, hub.port)
        with connected_to(url) as database:
            before = written(database)
        with contextlib.ExitStack() as taken:
            until(lambda: _has_taken_all(server, owner, taken), "the hub still has connections")
            began = time.monotonic()
            refused = [
                ask.post(TOPICS, {"title": "refused"}),
                ask.post(TOPICS, {"title": "refused"}, key="refused"),
                ask.get(TOPICS),
                ask.post("/v1/tasks", {"title": "refused"}),
            ]
            seconds = time.monotonic() - began
            ready = ask.get("/readyz")
        late = ask.request_until_final("POST", TOPICS, {"title": "refused"}, key="refused")
        with connected_to(url) as database:
            after = written(database)

    assert most <= DATABASE_CONNECTIONS + 1
    assert_unavailable(*refused)
    assert {answer.json["detail"].partition(".")[0] for answer in refused} == {
        "All connections to the database are in use"
    }
    assert (ready.status, ready.json["checks"]["database"]) == (503, "store-overloaded")
    assert seconds < ANSWER_SECONDS_MAX
    assert late.status == 201
    assert after["topics"] == before["topics"] + 1
    assert after["tasks"] == before["tasks"]


def _most_connections_under_load(owner: psycopg.Connection, port: int) -> int:
    """Return the largest number of connections of the hub, with a follower and more requests than connections."""
    ask = Caller(port)
    most = 0
    with SocketFollower(port), ThreadPoolExecutor(20) as threads:
        requests = [
            threads.submit(ask.post, TOPICS, {"title": "busy"}, key=f"busy-{number}")
            if number % 2
            else threads.submit(ask.get, TOPICS)
            for number in range(100)
        ]
        while not all(request.done() for request in requests):
            row = owner.execute(f"SELECT count(*) {_OF_HUB}".encode()).fetchone()
            assert row is not None
            most = max(most, row[0])
    assert {request.result().status for request in requests} == {200, 201}
    return most


def _has_taken_all(server: PostgresServer, owner: psycopg.Connection, taken: contextlib.ExitStack) -> bool:
    """End the connections of the hub, and take all that are free. The hub may have been faster to connect again."""
    owner.execute(f"SELECT pg_terminate_backend(pid) {_OF_HUB}".encode())
    with contextlib.suppress(psycopg.OperationalError):
        while True:
            taken.enter_context(psycopg.connect(server.url()))
    return owner.execute(f"SELECT count(*) {_OF_HUB}".encode()).fetchone() == (0,)
