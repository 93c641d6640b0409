"""A PostgreSQL whose connections are all taken: a 503 within seconds, nothing written, and the hub recovers."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psycopg
import pytest
from tests.faults.hub_database import connected_to, written
from tests.hub.in_process_hub import Client, in_process_hub
from tests.servers.postgres import PostgresServer
from tests.waiting import until

from onceward.hub.config import data_folder
from onceward.hub.config.config import Config, HubSettings
from onceward.ledger import ledger

TOPICS = "/api/v1/topics"
MAX_CONNECTIONS = 20
DATABASE_CONNECTIONS = 6
# Far more than a busy machine takes.
ANSWER_SECONDS_MAX = 30.0
_OF_HUB = "FROM pg_stat_activity WHERE application_name = 'onceward'"


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    server = PostgresServer()
    with (server.data / "postgresql.conf").open("a") as settings:
        settings.write(f"max_connections = {MAX_CONNECTIONS}\n")
    with server:
        yield server


def test_a_server_without_a_free_connection_is_reported_within_seconds_and_the_hub_recovers(
    server: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A keyed request waits for its claim; it is enough to see that the wait ends.
    monkeypatch.setattr(ledger, "BEGIN_SECONDS", 0.5)
    url = server.create_database()
    config = Config(
        HubSettings(data_dir=str(tmp_path / "data"), database=url, database_connections=DATABASE_CONNECTIONS)
    )
    with data_folder.opened(config):
        pass
    with psycopg.connect(server.url(), autocommit=True) as owner, in_process_hub(config) as hub:
        most = _most_connections_under_load(owner, hub)
        with connected_to(url) as database:
            before = written(database)
        with contextlib.ExitStack() as taken:
            until(lambda: _has_taken_all(server, owner, taken), "the hub still has connections")
            began = time.monotonic()
            refused = [
                hub.post(TOPICS, json={"title": "refused"}),
                hub.post(TOPICS, json={"title": "refused"}, headers={"Idempotency-Key": "refused"}),
                hub.get(TOPICS),
                hub.post("/v1/tasks", json={"title": "refused"}),
            ]
            seconds = time.monotonic() - began
            ready = hub.get("/readyz")
        late = hub.post(TOPICS, json={"title": "refused"}, headers={"Idempotency-Key": "refused"})
        with connected_to(url) as database:
            after = written(database)

    # The ledger has one more. No connection listens for events here.
    assert most <= DATABASE_CONNECTIONS
    assert [answer.status_code for answer in refused] == [503] * 4
    assert all(answer.headers["retry-after"] for answer in refused)
    assert {answer.json()["detail"].partition(".")[0] for answer in refused} == {
        "All connections to the database are in use"
    }
    assert (ready.status_code, ready.json()["checks"]["database"]) == (503, "store-overloaded")
    assert seconds < ANSWER_SECONDS_MAX
    assert late.status_code == 201
    assert after["topics"] == before["topics"] + 1
    assert after["tasks"] == before["tasks"]


def _most_connections_under_load(owner: psycopg.Connection, hub: Client) -> int:
    """Return the largest number of connections of the hub, with more requests than connections."""
    most = 0

    async def load() -> list[httpx.Response]:
        nonlocal most
        requests = [
            asyncio.ensure_future(
                hub.client.post(TOPICS, json={"title": "busy"}, headers={"Idempotency-Key": f"busy-{number}"})
                if number % 2
                else hub.client.get(TOPICS)
            )
            for number in range(60)
        ]
        while not all(request.done() for request in requests):
            row = await asyncio.to_thread(lambda: owner.execute(f"SELECT count(*) {_OF_HUB}".encode()).fetchone())
            assert row is not None
            most = max(most, row[0])
        return [request.result() for request in requests]

    assert {response.status_code for response in hub.run(load())} == {200, 201}
    return most


def _has_taken_all(server: PostgresServer, owner: psycopg.Connection, taken: contextlib.ExitStack) -> bool:
    """End the connections of the hub, and take all that are free. The hub may have been faster to connect again."""
    owner.execute(f"SELECT pg_terminate_backend(pid) {_OF_HUB}".encode())
    with contextlib.suppress(psycopg.OperationalError):
        while True:
            taken.enter_context(psycopg.connect(server.url()))
    return owner.execute(f"SELECT count(*) {_OF_HUB}".encode()).fetchone() == (0,)
