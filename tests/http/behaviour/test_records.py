"""Records in the store: an operator can read them with SQL, except encrypted ones."""

from __future__ import annotations

import itertools
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis
from tests.http.behaviour.conftest import ASGI_AND_WSGI, SHARED, SQL, StartServer, few, for_each, on
from tests.http.behaviour.demo_server import DemoServer, assert_problem, is_replay, new_name
from tests.waiting import until

SQLITE = "sqlite:///"
COLUMNS = "status, user_id, endpoint, response_status, attempt, completed_at IS NULL"


def rows(server: DemoServer, columns: str, key: str) -> list[tuple[Any, ...]]:
    """Return the rows of a key in the table `platform_idempotency_keys`."""
    statement = f"SELECT {columns} FROM platform_idempotency_keys WHERE key = "  # noqa: S608  # our own columns
    if server.store.startswith(SQLITE):
        with closing(sqlite3.connect(server.store.removeprefix(SQLITE))) as file:
            return list(file.execute(statement + "?", (key,)))
    with psycopg.connect(server.store) as database:
        return list(database.execute(statement + "%s", (key,)))


def stored(server: DemoServer) -> bytes:
    """Return all bytes in the store."""
    if server.store.startswith(SQLITE):
        folder = Path(server.store.removeprefix(SQLITE)).parent
        return b"".join(file.read_bytes() for file in folder.glob("ledger.db*"))
    found: list[Any] = []
    if server.store.startswith("redis"):
        url, _, prefix = server.store.partition("?prefix=")
        with closing(redis.Redis.from_url(url)) as client:
            for name in client.scan_iter(f"{prefix}:*"):
                if client.type(name) == b"hash":
                    found += [name, *client.hvals(name)]
                elif client.type(name) == b"list":
                    found += client.lrange(name, 0, -1)
    else:
        with psycopg.connect(server.store) as database:
            for table in ("platform_idempotency_keys", "platform_idempotency_chunks"):
                found += itertools.chain(*database.execute(f"SELECT * FROM {table}"))  # noqa: S608  # our own tables
    return b"\n".join(value if isinstance(value, bytes) else str(value).encode() for value in found)


@on(ASGI_AND_WSGI, SQL)
def test_an_operator_can_read_in_sql_how_a_request_ended(server: DemoServer) -> None:
    name, done, failed, doubtful = new_name(), new_name(), new_name(), new_name()
    server.trial(name, done, {"status": 201}, user="")
    server.trial(name, failed, {"status": 503}, user="")
    server.trial(name, doubtful, {"fail": True}, rule="hold", user="")

    plain, hold = f"POST /api/trials/plain/{name}", f"POST /api/trials/hold/{name}"

    assert rows(server, COLUMNS, done) == [("completed", "anonymous", plain, 201, 1, False)]
    assert [row[0:3] for row in rows(server, COLUMNS, failed)] == [("failed", "anonymous", plain)]
    assert [row[0:3] for row in rows(server, COLUMNS, doubtful)] == [("in_doubt", "anonymous", hold)]


@for_each(ASGI_AND_WSGI, few("sqlite", of=SQL))
def test_expired_keys_are_deleted_in_the_background(start_server: StartServer, framework: str, store: str) -> None:
    server = start_server(framework, store, purge_seconds=0.1)
    brief, lasting = new_name(), new_name()

    server.trial(brief, brief, rule="brief")
    server.trial(lasting, lasting)

    until(lambda: rows(server, "status", brief) == [], "the expired key is still there")
    assert rows(server, "status", lasting) == [("completed",)]


@for_each(ASGI_AND_WSGI, few("sqlite", of=SHARED))
@pytest.mark.parametrize("plan", [{"text": "the secret"}, {"parts": ["the secret" * 100] * 90}], ids=["small", "large"])
def test_an_encrypted_response_replays_and_cannot_be_read_in_the_store(
    start_server: StartServer, framework: str, store: str, plan: dict[str, Any]
) -> None:
    old, new = "11" * 32, "22" * 32
    server = start_server(framework, store, encryption_keys=[old])
    name, key = new_name(), new_name()
    first = server.trial(name, key, plan)

    server.kill()
    kept = stored(server)
    server.start(encryption_keys=[new, old])
    rotated = server.trial(name, key, plan)
    server.kill()
    server.start(encryption_keys=[new])
    unreadable = server.trial(name, key, plan)

    assert key.encode() in kept
    assert b"secret" not in kept
    assert rotated.content == first.content
    assert is_replay(rotated)
    assert_problem(unreadable, 409, "outcome-not-kept")
    assert server.runs(name) == 1
