"""Both schemas, policies, keyed requests and scopes, over HTTP, on both databases."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.hub.in_process_hub import Client
from tests.hub.ingest_hub import (
    LETTER,
    PLAIN,
    SCHEMAS,
    THOUGHT,
    events,
    ingest_hub,
    insert,
    inserted,
    newsletter,
    problem,
    rows,
    switch,
    thought,
)

from onceward.hub.db.engine import Database
from onceward.hub.security import tokens

SEEDED = {
    "telegram_thought_v1": ("telegram", "thought/note", "update", "hint", True),
    "telegram_link_v1": ("telegram", "link", "skip", "identity", True),
    "email_newsletter_v1": ("email", "newsletter", "skip", "identity", True),
    "email_correspondence_thread_v1": ("email", "correspondence_thread", "update", "identity", True),
    "email_correspondence_thread_v2": ("email", "correspondence_thread", "update", "identity", False),
}
SONGS: dict[str, Any] = {
    "policy_key": "songs_v1",
    "source": "songs",
    "content_type": "song",
    "conflict_action": "update",
    "update_fields": ["title"],
}


@pytest.fixture
def client(database: Database, database_url: str, tmp_path: Path) -> Iterator[Client]:
    assert database is not None
    with ingest_hub(database_url, tmp_path) as client:
        yield client


def song(title: str) -> dict[str, Any]:
    return {
        "source": "songs",
        "content_type": "song",
        "title": title,
        "author": title,
        "idempotency_policy_key": "songs_v1",
        "idempotency_key_primary": "1",
    }


# Schemas.


def test_entries_go_to_the_active_schema_and_the_schemas_are_separate(
    client: Client, database: Database, database_url: str, tmp_path: Path
) -> None:
    first = inserted(client, thought(1))
    switch(client, enabled=True)
    other, again = inserted(client, thought(1)), inserted(client, thought(1))

    assert [one["action"] for one in (first, other, again)] == ["inserted", "inserted", "updated"]
    assert [one["schema"] for one in (first, other, again)] == ["pkm", "pkm_test", "pkm_test"]
    assert [[row["clean_text"] for row in rows(database, schema)] for schema in SCHEMAS] == [["Buy milk"]] * 2
    assert [one["data"]["schema"] for one in events(client)] == ["pkm", "pkm_test"]
    assert client.get("/test-mode").json() == {"enabled": True}
    with ingest_hub(database_url, tmp_path) as restarted:
        assert restarted.get("/test-mode").json() == {"enabled": True}
        switch(restarted, enabled=False)
        assert inserted(restarted, thought(1))["id"] == first["id"]


def test_during_mode_switches_every_entry_is_where_its_response_says(client: Client, database: Database) -> None:
    count = 60

    async def ask() -> list[Any]:
        asked = client.client

        async def switching() -> None:
            for number in range(20):
                await asked.put("/test-mode", json={"enabled": number % 2 == 0})

        async def inserting(number: int) -> Any:
            headers = {"Idempotency-Key": f"key-{number}"} if number % 2 else {}
            sent = thought(number) if number % 3 else {"items": [thought(number), thought(number + 1000)]}
            return await asked.post("/db/insert", json=sent, headers=headers)

        # At least one in each mode, whichever is faster in between.
        before = await inserting(count)
        _, *meanwhile = await asyncio.gather(switching(), *(inserting(number) for number in range(count)))
        await asked.put("/test-mode", json={"enabled": True})
        return [before, *meanwhile, await inserting(count + 1)]

    answers = client.run(ask())

    answered: dict[str, set[str]] = {schema: set() for schema in SCHEMAS}
    for answer in answers:
        assert answer.status_code == 200, answer.text
        shown = answer.json()
        answered[shown["schema"]] |= {one["id"] for one in shown.get("results", [shown])}
    assert {schema: {str(row["id"]) for row in rows(database, schema)} for schema in SCHEMAS} == answered
    assert all(answered.values()), "both were used"


# Keys.


def test_with_a_key_a_retry_gets_the_first_response(client: Client, database: Database) -> None:
    first, again, unkeyed = insert(client, thought(1), "k"), insert(client, thought(1), "k"), insert(client, thought(1))

    assert first.json()["action"] == "inserted"
    assert (again.content, again.headers["Idempotent-Replayed"]) == (first.content, "true")
    assert unkeyed.json()["action"] == "updated"
    assert len(rows(database, "pkm")) == len(events(client)) == 1


def test_the_same_request_in_the_other_mode_is_another_request(client: Client, database: Database) -> None:
    first = insert(client, thought(1), "k")
    batch = insert(client, {"items": [thought(2)]}, "b")
    policy = client.put("/policies", json=SONGS, headers={"Idempotency-Key": "p"})
    switch(client, enabled=True)
    after = [
        insert(client, thought(1), "k"),
        insert(client, {"items": [thought(2)]}, "b"),
        client.put("/policies", json=SONGS, headers={"Idempotency-Key": "p"}),
    ]
    switch(client, enabled=False)

    assert (first.status_code, batch.status_code, policy.status_code) == (200, 200, 200)
    for answer in after:
        assert problem(answer, 422)["detail"] == "Idempotency key already used with different request"
    assert rows(database, "pkm_test") == []
    assert "songs_v1" not in keys(client, "pkm_test")
    assert insert(client, thought(1), "k").content == first.content


def test_a_keyed_request_runs_in_the_schema_of_its_fingerprint(client: Client, database: Database) -> None:
    """The mode is switched between the fingerprint and the handler, which uses the schema of the fingerprint."""

    async def late() -> Any:
        sent, go = asyncio.Event(), asyncio.Event()

        async def body() -> Any:
            yield b'{"source":"notes",'
            sent.set()
            await go.wait()
            yield b'"title":"slow"}'

        headers = {"Idempotency-Key": "slow", "Content-Type": "application/json"}
        asking = asyncio.ensure_future(client.client.post("/db/insert", content=body(), headers=headers))
        await sent.wait()
        await client.client.put("/test-mode", json={"enabled": True})
        go.set()
        return await asking

    answer = client.run(late())

    assert answer.json()["schema"] == "pkm"
    assert (len(rows(database, "pkm")), len(rows(database, "pkm_test"))) == (1, 0)


def forget_responses(ledger: Path) -> None:
    """Make it look as if their process had died after the commit, before the ledger was told, and their claims had
    expired.
    """
    with closing(sqlite3.connect(ledger)) as database, database:
        database.execute(
            """UPDATE platform_idempotency_keys SET status = 'in_progress', completed_at = NULL, lease_until = created_at,
               expires_at = NULL, response_status = NULL, response_headers = NULL, response_body = NULL"""
        )


def test_a_retry_whose_first_response_was_lost_gets_the_results_of_the_first_run(
    client: Client, database: Database, tmp_path: Path
) -> None:
    """A retry returns entries in their current state, so both versions of an entry in a batch show the later one."""
    inserted(client, newsletter("<0>", "s0"))
    items = [newsletter("<0>", "s0"), thought(2), "bad", thought(2, "edited"), PLAIN]
    sent: list[Any] = [thought(1), PLAIN, {"items": items}]
    first = [insert(client, one, f"key-{number}").json() for number, one in enumerate(sent)]
    count = len(rows(database, "pkm")), len(events(client))
    forget_responses(tmp_path / "keys.db")
    answers = [insert(client, one, f"key-{number}") for number, one in enumerate(sent)]

    assert ["idempotent-replayed" in answer.headers for answer in answers] == [False] * 3
    again = [answer.json() for answer in answers]
    first[2]["results"][1] |= {name: again[2]["results"][3][name] for name in ("clean_text", "updated_at")}
    assert again == first
    assert (len(rows(database, "pkm")), len(events(client))) == count


# Policies.


def keys(client: Client, schema: str) -> list[str]:
    return [one["policy_key"] for one in client.get("/policies", params={"schema": schema}).json()["policies"]]


def test_both_schemas_start_with_the_same_policies(client: Client) -> None:
    names = ("source", "content_type", "conflict_action", "secondary_role", "enabled")
    for schema in SCHEMAS:
        answered = client.get("/policies", params={"schema": schema}).json()

        found = {one["policy_key"]: tuple(one[name] for name in names) for one in answered["policies"]}
        assert (answered["schema"], found) == (schema, SEEDED)
        assert all(one["update_fields"] is None for one in answered["policies"])
    assert client.get("/policies").json()["schema"] == "pkm"


def test_a_policy_is_created_and_changed_only_in_the_active_schema(client: Client) -> None:
    made = client.put("/policies", json=SONGS)
    first, second = inserted(client, song("one")), inserted(client, song("two"))
    client.put("/policies", json={**SONGS, "update_fields": []})
    third = inserted(client, song("three"))
    disabled = client.put("/policies", json={**SONGS, "enabled": False})
    refused = insert(client, song("four"))

    assert made.json() == {
        **SONGS, "policy_id": made.json()["policy_id"], "enabled": True, "secondary_role": "identity",
    }  # fmt: skip
    assert (first["action"], second["title"], second["author"]) == ("inserted", "two", "one")
    assert (third["action"], third["changed"], third["title"]) == ("updated", False, "two")
    assert disabled.json()["policy_id"] == made.json()["policy_id"]
    assert problem(refused, 400)["errors"][0]["field"] == "idempotency_policy_key"
    assert ("songs_v1" in keys(client, "pkm"), "songs_v1" in keys(client, "pkm_test")) == (True, False)


def test_an_omitted_field_is_unchanged(client: Client) -> None:
    seeded = client.get("/policies").json()["policies"][0]
    plain = ("policy_key", "source", "content_type", "conflict_action", "update_fields", "enabled")

    answer = client.put("/policies", json={name: seeded[name] for name in plain})
    one, other = inserted(client, thought(1)), inserted(client, thought(2))

    assert answer.json() == seeded
    assert (one["action"], other["action"], one["id"] != other["id"]) == ("inserted", "inserted", True)


def test_null_differs_from_omitted(client: Client) -> None:
    client.put("/policies", json={**SONGS, "enabled": False})
    short = {name: value for name, value in SONGS.items() if name != "update_fields"}

    kept = client.put("/policies", json=short).json()
    all_of_them = client.put("/policies", json={**short, "update_fields": None}).json()

    assert (kept["update_fields"], kept["enabled"]) == (SONGS["update_fields"], False)
    assert (all_of_them["update_fields"], all_of_them["enabled"]) == (None, False)


WRONG: dict[str, dict[str, Any]] = {
    "policy_key": {"policy_key": " "},
    "source": {"source": ""},
    "content_type": {"content_type": "a//b"},
    "conflict_action": {"conflict_action": "replace"},
    "update_fields": {"update_fields": ["created_at"]},
    "update_fields.0": {"update_fields": [5]},
    "enabled": {"enabled": 1},
    "secondary_role": {"secondary_role": None},
    "colour": {"colour": "red"},
}


@pytest.mark.parametrize("field", WRONG)
def test_an_invalid_policy_is_refused(client: Client, field: str) -> None:
    answered = problem(client.put("/policies", json={**SONGS, **WRONG[field]}), 400)

    assert answered["errors"][0]["field"] == field
    assert keys(client, "pkm") == list(SEEDED)


def test_other_invalid_requests_are_refused(client: Client) -> None:
    inserted(client, thought(1))
    seeded = client.get("/policies").json()["policies"][0]
    other = {name: seeded[name] for name in seeded if name != "policy_id"}

    problem(client.put("/policies", json={**other, "source": "songs"}), 409)
    problem(client.get("/policies", params={"schema": "public"}), 400)
    problem(client.put("/test-mode", json={"enabled": "yes"}), 400)
    problem(client.put("/test-mode", json={}), 400)
    problem(client.get("/db/insert"), 405)


# Scopes.


def test_each_scope_allows_these_requests(database: Database, database_url: str, tmp_path: Path) -> None:
    allowed = {
        ("POST", "/normalize/telegram", "write"): THOUGHT,
        ("POST", "/normalize/email", "write"): LETTER,
        ("POST", "/db/insert", "write"): PLAIN,
        ("GET", "/test-mode", "read or admin"): None,
        ("PUT", "/test-mode", "admin"): {"enabled": False},
        ("GET", "/policies", "admin"): None,
        ("PUT", "/policies", "admin"): SONGS,
    }
    with database.write() as tx:
        texts = {scope: tokens.create(tx, scope, [scope])[1] for scope in ("read", "write", "admin")}
    with ingest_hub(database_url, tmp_path) as client:
        for (method, path, needed), sent in allowed.items():
            for scope, text in texts.items():
                answer = client.request(method, path, json=sent, headers={"Authorization": f"Bearer {text}"})

                assert answer.status_code == (200 if scope in needed.split(" or ") else 403), (method, path, scope)
    assert len(rows(database, "pkm")) == 1
