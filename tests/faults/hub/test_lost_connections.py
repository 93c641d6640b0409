"""A hub whose connections to PostgreSQL are dropped while they are idle, and whose commits are answered too late."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from tests.backends import Servers
from tests.hub.in_process_hub import Client, in_process_hub
from tests.servers.database_pool import DatabasePool
from tests.servers.postgres import PostgresServer
from tests.servers.tcp_proxy import TcpProxy

from onceward.hub.config.config import Config, HubSettings

TOPICS = "/api/v1/topics"
_KILL = (
    "SELECT count(pg_terminate_backend(pid, 10000)) FROM pg_stat_activity"
    " WHERE datname = current_database() AND pid <> pg_backend_pid() AND application_name = 'onceward'"
)


@pytest.fixture
def url(database_pool: DatabasePool) -> Iterator[str]:
    with database_pool.borrow() as url:
        yield url


@pytest.fixture
def ledger_url(servers: Servers) -> str:
    return servers.emptied_database()


@pytest.fixture
def hub(url: str, ledger_url: str, tmp_path: Path) -> Iterator[Client]:
    with in_process_hub(Config(HubSettings(data_dir=str(tmp_path), database=url, ledger=ledger_url))) as client:
        yield client


def drop_connections(*urls: str) -> list[int]:
    """Drop the idle connections, and wait until they are gone. Return their number in each database."""
    dropped = []
    for url in urls:
        with psycopg.connect(url, autocommit=True) as other:
            dropped += [count for (count,) in other.execute(_KILL)]
    return dropped


def titles(hub: Client) -> list[str]:
    return [topic["title"] for topic in hub.get(TOPICS).json()["topics"]]


def test_requests_after_dropped_connections_succeed_at_the_first_attempt(
    hub: Client, url: str, ledger_url: str
) -> None:
    key = {"Idempotency-Key": "once"}
    hub.post(TOPICS, json={"title": "before"}, headers={"Idempotency-Key": "before"})

    dropped = drop_connections(url, ledger_url)
    read = hub.get(TOPICS)
    drop_connections(url, ledger_url)
    made = hub.post(TOPICS, json={"title": "after"}, headers=key)
    drop_connections(url, ledger_url)
    replayed = hub.post(TOPICS, json={"title": "after"}, headers=key)
    drop_connections(url)
    unkeyed = hub.post(TOPICS, json={"title": "unkeyed"})
    drop_connections(url, ledger_url)
    ready = hub.get("/readyz")

    assert all(dropped)
    assert [answer.status_code for answer in (read, made, replayed, unkeyed, ready)] == [200, 201, 201, 201, 200]
    assert (replayed.content, replayed.headers["idempotent-replayed"]) == (made.content, "true")
    assert sorted(titles(hub)) == ["after", "before", "unkeyed"]


def test_a_commit_whose_result_was_lost_is_not_repeated(
    url: str, postgres_server: PostgresServer, tmp_path: Path
) -> None:
    """The row carries the request key, so the retry finds it."""
    with TcpProxy(postgres_server.port) as proxy:
        proxied = url.replace(f":{postgres_server.port}/", f":{proxy.port}/")
        settings = HubSettings(data_dir=str(tmp_path), database=proxied, ledger=f"sqlite:///{tmp_path}/keys.db")
        with in_process_hub(Config(settings)) as hub:
            topic = hub.post(TOPICS, json={"title": "a topic"}).json()["topic"]["id"]
            path = f"{TOPICS}/{topic}/messages"
            message, key = {"sender": "a", "content": "once"}, {"Idempotency-Key": "once"}

            proxy.lose_replies(b"COMMIT")
            lost = hub.post(path, json=message, headers=key)
            proxy.heal()
            retried = hub.post(path, json=message, headers=key)
            again = hub.post(path, json=message, headers=key)
            kept = hub.get(path).json()["messages"]

    assert (lost.status_code, lost.headers["retry-after"]) == (503, "5")
    assert (retried.status_code, again.content) == (201, retried.content)
    assert [one["content"] for one in kept] == ["once"]
