"""Inserts over HTTP through the hub's writer, on both databases: several at once, conflicts, and reads instead of writes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
import sqlalchemy.exc
from sqlalchemy import text
from tests.hub.in_process_hub import Client
from tests.hub.ingest_hub import PLAIN, events, ingest_hub, insert, inserted, newsletter, problem, rows, thought

from onceward.errors import StoreUnavailable
from onceward.hub.db.engine import Database
from onceward.hub.db.writer import Writer
from onceward.hub.ingest.entries import insert as entries
from onceward.hub.routes.ingest import INLINE_BYTES_MAX


@pytest.fixture
def client(database: Database, database_url: str, tmp_path: Path) -> Iterator[Client]:
    assert database is not None
    with ingest_hub(database_url, tmp_path) as client:
        yield client


def post_concurrently(client: Client, several: list[tuple[Any, str | None]]) -> list[httpx.Response]:
    async def all_of_them() -> list[httpx.Response]:
        headers = [{} if key is None else {"Idempotency-Key": key} for _, key in several]
        posts = [
            client.client.post("/db/insert", json=sent, headers=one)
            for (sent, _), one in zip(several, headers, strict=True)
        ]
        return list(await asyncio.gather(*posts))

    return client.run(all_of_them())


def test_requests_at_once_get_their_own_answers(client: Client, database: Database) -> None:
    several: list[tuple[Any, str | None]] = [
        *((thought(number, f"text {number}"), None) for number in range(10)),
        *((thought(number, f"text {number}"), f"key-{number}") for number in range(10, 20)),
        ({"source": "email"}, None),
        ({"items": [thought(20), "bad", thought(20, "edited")]}, None),
        ({"items": [PLAIN]}, "batch"),
    ]

    answers = post_concurrently(client, several)
    again = post_concurrently(client, several[10:20])

    assert [answer.json()["clean_text"] for answer in answers[:20]] == [f"text {number}" for number in range(20)]
    assert {answer.json()["action"] for answer in answers[:20]} == {"inserted"}
    problem(answers[20], 400)
    results = [one for answer in answers[21:] for one in answer.json()["results"]]
    assert [one["action"] for one in results] == ["inserted", "failed", "updated", "inserted"]
    assert results[2]["duplicate_of_index"] == 0
    assert [answer.content for answer in again] == [answer.content for answer in answers[10:20]]
    assert len(rows(database, "pkm")) == 22
    reported = {one["event_id"]: one["data"]["id"] for one in events(client)}
    shown = [answer.json() for answer in answers[:20]] + [one for one in results if one["action"] != "failed"]
    assert reported == {one["event_id"]: one["id"] for one in shown}


def test_the_same_entry_at_once_is_inserted_once(client: Client, database: Database) -> None:
    answers = [answer.json() for answer in post_concurrently(client, [(newsletter("<1@x>", "monday"), None)] * 12)]

    assert sorted(one["action"] for one in answers) == ["inserted", *["skipped"] * 11]
    assert len({one["id"] for one in answers}) == len(rows(database, "pkm")) == 1
    assert {"duplicate_of_index", "index"}.isdisjoint(name for one in answers for name in one)


@pytest.mark.parametrize("key", [None, "key"])
def test_an_entry_that_would_not_change_is_answered_without_a_write(
    client: Client, monkeypatch: pytest.MonkeyPatch, key: str | None
) -> None:
    sent = [newsletter("<1@x>", "a"), newsletter("<2@x>", "b"), thought(1, metadata={"a": 1})]
    for one in sent:
        inserted(client, one)

    async def no_write(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(Writer, "add", no_write)
    skipped = inserted(client, newsletter("<1@x>", "b"), key)
    unchanged = inserted(client, thought(1), key and f"{key}-2")
    strict = insert(client, newsletter("<1@x>", "b", strict=True), key and f"{key}-3")
    refused = insert(client, thought(1, idempotency_policy_key="unknown"), key and f"{key}-4")

    assert (skipped["action"], skipped["event_id"], len(skipped["split_with"])) == ("skipped", None, 1)
    assert (unchanged["action"], unchanged["changed"], unchanged["metadata"]) == ("updated", False, {"a": 1})
    problem(strict, 409)
    problem(refused, 400)


@pytest.mark.parametrize("key", [None, "key"])
@pytest.mark.parametrize("several", [False, True], ids=["one entry", "a batch"])
def test_a_request_that_the_writer_gives_up_is_inserted_directly(
    client: Client, database: Database, monkeypatch: pytest.MonkeyPatch, key: str | None, several: bool
) -> None:
    def meet(*_: object) -> None:
        cause = sqlalchemy.exc.OperationalError("INSERT", {}, psycopg.errors.DeadlockDetected())
        raise StoreUnavailable("the database is unavailable: deadlock detected") from cause

    monkeypatch.setattr(entries.INSERT, "run", meet)
    monkeypatch.setattr("onceward.hub.routes.ingest.insert_steps", meet)

    answer = insert(client, {"items": [thought(1), thought(2)]} if several else thought(1), key)

    assert answer.status_code == 200, answer.text
    found = rows(database, "pkm")
    assert len(found) == len(events(client)) == (2 if several else 1)


def test_an_unavailable_database_is_not_asked_a_second_time(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise StoreUnavailable("the database is unavailable: it does not respond")

    def never(*_: object, **__: object) -> None:
        raise AssertionError

    monkeypatch.setattr(entries.INSERT, "run", fail)
    monkeypatch.setattr(entries, "insert_entries", never)

    problem(insert(client, thought(1)), 503)


def test_an_entry_that_the_database_refuses_is_told_and_costs_the_others_nothing(
    client: Client, database: Database
) -> None:
    with database.write() as tx:
        if database.is_sqlite:
            tx.execute(
                text(
                    "CREATE TRIGGER no_spam BEFORE INSERT ON pkm_entries WHEN NEW.title = 'spam'"
                    " BEGIN SELECT RAISE(ABORT, 'no spam'); END"
                )
            )
        else:
            tx.execute(text("ALTER TABLE pkm.entries ADD CONSTRAINT no_spam CHECK (title <> 'spam')"))

    titles = ["ham", "spam", "eggs"]
    answers = post_concurrently(client, [(thought(number, title=title), None) for number, title in enumerate(titles)])
    batch = insert(client, {"items": [thought(3), thought(4, title="spam")]}).json()["results"]

    assert [answer.status_code for answer in answers] == [200, 400, 200]
    assert "the database refused this entry: " in answers[1].json()["detail"]
    assert [one["action"] for one in batch] == ["inserted", "failed"]
    assert len(rows(database, "pkm")) == 3


@pytest.mark.parametrize("key", [None, "key"])
def test_a_large_entry_is_inserted_updated_and_found(client: Client, key: str | None) -> None:
    large = "x" * (INLINE_BYTES_MAX + 1)
    first = inserted(client, thought(1, large), key)
    again = inserted(client, thought(1, large), key)
    edited = inserted(client, thought(1, large + "y"), key and f"{key}-2")

    assert (first["clean_text"], first["action"]) == (large, "inserted")
    assert (again == first) if key else (again["changed"] is False)
    assert (edited["action"], edited["changed"], edited["clean_text"]) == ("updated", True, large + "y")
