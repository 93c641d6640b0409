"""What lies in the store: an operator can read it with SQL, and nobody can read what was sealed."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.http.behaviour.conftest import Serve, on
from tests.http.serving import Serving, assert_problem, is_replay, new_name
from tests.waiting import until

SQLITE = "sqlite:///"
frameworks = pytest.mark.parametrize("framework", ["starlette", "flask"])
COLUMNS = "status, user_id, endpoint, response_status, attempt, completed_at IS NULL"


def rows(serving: Serving, columns: str, key: str) -> list[tuple[Any, ...]]:
    """The rows of a key in the table of the seeds."""
    statement = f"SELECT {columns} FROM platform_idempotency_keys WHERE key = "  # noqa: S608  # our own columns
    if serving.store.startswith(SQLITE):
        with closing(sqlite3.connect(serving.store.removeprefix(SQLITE))) as file:
            return list(file.execute(statement + "?", (key,)))
    with psycopg.connect(serving.store) as database:
        return list(database.execute(statement + "%s", (key,)))


@on(("starlette", "flask"), ("sqlite", "postgres"))
def test_an_operator_reads_in_sql_what_became_of_a_request(serving: Serving) -> None:
    name, done, failed, doubtful = new_name(), new_name(), new_name(), new_name()
    serving.trial(name, done, {"status": 201}, user="")
    serving.trial(name, failed, {"status": 503}, user="")
    serving.trial(name, doubtful, {"fail": True}, rule="hold", user="")

    plain, hold = f"POST /api/trials/plain/{name}", f"POST /api/trials/hold/{name}"

    assert rows(serving, COLUMNS, done) == [("completed", "anonymous", plain, 201, 1, False)]
    assert [row[0:3] for row in rows(serving, COLUMNS, failed)] == [("failed", "anonymous", plain)]
    assert [row[0:3] for row in rows(serving, COLUMNS, doubtful)] == [("in_doubt", "anonymous", hold)]


@frameworks
def test_expired_keys_are_deleted_in_the_background(serve: Serve, framework: str) -> None:
    serving = serve(framework, "sqlite", purge_seconds=0.1)
    brief, lasting = new_name(), new_name()

    serving.trial(brief, brief, rule="brief")
    serving.trial(lasting, lasting)

    until(lambda: rows(serving, "status", brief) == [], "the expired key is still there")
    assert rows(serving, "status", lasting) == [("completed",)]


@frameworks
@pytest.mark.parametrize("plan", [{"text": "the secret"}, {"parts": ["the secret" * 100] * 90}], ids=["small", "large"])
def test_a_sealed_response_replays_and_cannot_be_read_in_the_store(
    serve: Serve, framework: str, plan: dict[str, Any]
) -> None:
    old, new = "11" * 32, "22" * 32
    serving = serve(framework, "sqlite", encryption_keys=[old])
    name, key = new_name(), new_name()
    first = serving.trial(name, key, plan)

    serving.kill()
    folder = Path(serving.store.removeprefix(SQLITE)).parent
    stored = b"".join(file.read_bytes() for file in folder.glob("ledger.db*"))
    serving.start(encryption_keys=[new, old])
    rotated = serving.trial(name, key, plan)
    serving.kill()
    serving.start(encryption_keys=[new])
    unreadable = serving.trial(name, key, plan)

    assert b"secret" not in stored
    assert rotated.content == first.content
    assert is_replay(rotated)
    assert_problem(unreadable, 409, "outcome-not-kept")
    assert serving.runs(name) == 1
