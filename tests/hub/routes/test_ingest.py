"""Messages normalized and inserted over HTTP, on both databases: the responses and the resulting entries."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.hub.in_process_hub import Client
from tests.hub.ingest_hub import (
    LETTER,
    LINK,
    PLAIN,
    THOUGHT,
    events,
    ingest_hub,
    insert,
    inserted,
    newsletter,
    normalized,
    problem,
    row_counts,
    rows,
    thought,
)

from onceward.hub.db.engine import Database

COLUMNS = {
    "id", "entry_id", "created_at", "updated_at", "source", "content_type", "title", "author", "url", "url_canonical",
    "capture_text", "clean_text", "content_hash", "external_ref", "metadata", "idempotency_policy_id",
    "idempotency_key_primary", "idempotency_key_secondary",
}  # fmt: skip
SENT = COLUMNS - {"id", "entry_id", "created_at", "updated_at", "idempotency_policy_id"}


@pytest.fixture
def client(database: Database, database_url: str, tmp_path: Path) -> Iterator[Client]:
    assert database is not None
    with ingest_hub(database_url, tmp_path) as client:
        yield client


def test_a_link_becomes_an_entry_and_is_found_when_it_comes_again(client: Client, database: Database) -> None:
    payload = normalized(client, "telegram", LINK)
    first, again = inserted(client, payload), inserted(client, payload)

    unknown = {"title", "author", "external_ref"}
    assert set(payload) == (SENT - unknown) | {"idempotency_policy_key", "reasons"}
    assert payload["idempotency_key_primary"] == "https://example.com/Path/?utm_source=x&b=2&a=1"
    assert payload["url"] == "https://Example.com/Path/?utm_source=x&b=2&a=1#frag"
    assert set(first) >= COLUMNS
    assert {name: first[name] for name in SENT} == {name: payload.get(name) for name in SENT}
    assert (first["action"], first["changed"], first["matched_on"], first["schema"]) == ("inserted", True, None, "pkm")
    assert (again["action"], again["changed"], again["matched_on"]) == ("skipped", False, "primary")
    assert {name: again[name] for name in COLUMNS} == {name: first[name] for name in COLUMNS}
    assert (again["event_id"], len(rows(database, "pkm"))) == (None, 1)
    assert [(one["name"], one["event_id"]) for one in events(client)] == [("entry.inserted", first["event_id"])]


@pytest.mark.parametrize("sort", ["telegram", "email"])
def test_a_redelivered_message_keeps_what_was_added_to_its_entry(client: Client, sort: str) -> None:
    sent = THOUGHT if sort == "telegram" else {"raw_text": "Yes.", "subject": "Re: Plan"}
    added = {"author": "Ada", "url": "https://example.com/1", "metadata": {"summary": "short"}}
    payload = normalized(client, sort, sent)
    inserted(client, payload)
    enriched = inserted(client, {**payload, **added})

    again = inserted(client, normalized(client, sort, sent))
    batch = insert(client, {"items": [payload, payload]}).json()["results"]

    for result in (again, *batch):
        assert (result["action"], result["changed"], result["event_id"]) == ("updated", False, None)
        assert {name: result[name] for name in COLUMNS} == {name: enriched[name] for name in COLUMNS}
    cleared = inserted(client, {**payload, "author": None, "metadata": None})
    assert (cleared["author"], cleared["url"], cleared["metadata"]) == (None, "https://example.com/1", {})


def test_a_link_that_differs_only_in_tracking_is_found_by_its_secondary_key(client: Client) -> None:
    first = inserted(client, normalized(client, "telegram", LINK))
    other = inserted(client, normalized(client, "telegram", {"text": "https://example.com/Path/?b=2&a=1"}))

    assert (other["action"], other["matched_on"], other["id"]) == ("skipped", "secondary", first["id"])
    assert other["idempotency_key_primary"] == first["idempotency_key_primary"]


def test_an_edited_thought_is_updated_and_a_late_older_edit_is_stale(client: Client) -> None:
    def edited(text: str, edit_date: int | None) -> dict[str, Any]:
        source = {"chat_id": "7", "message_id": 42, "date": 1000, "edit_date": edit_date}
        return inserted(client, normalized(client, "telegram", {"text": text, "source": source}))

    first, second, late, same = edited("one", None), edited("three", 3000), edited("two", 2000), edited("three", 3000)

    assert first["idempotency_key_primary"] == "tg:7:42"
    assert [one["action"] for one in (first, second, late, same)] == ["inserted", "updated", "updated", "updated"]
    assert [one["changed"] for one in (first, second, late, same)] == [True, True, False, False]
    assert [one["clean_text"] for one in (first, second, late, same)] == ["one", "three", "three", "three"]
    assert [one.get("stale", False) for one in (first, second, late, same)] == [False, False, True, False]
    assert second["updated_at"] == late["updated_at"] == same["updated_at"]
    assert [one["name"] for one in events(client)] == ["entry.inserted", "entry.updated"]


def test_ids_of_0_are_ids_and_the_same_words_in_two_messages_are_two_entries(client: Client) -> None:
    zero = normalized(client, "telegram", {**THOUGHT, "source": {"chat_id": 0, "message_id": 0}})
    first, second = inserted(client, zero), inserted(client, normalized(client, "telegram", THOUGHT))

    assert zero["idempotency_key_primary"] == "tg:0:0"
    assert [first["action"], second["action"]] == ["inserted", "inserted"]
    assert first["clean_text"] == second["clean_text"]
    assert first["idempotency_key_secondary"] is not None
    assert second["idempotency_key_secondary"] is None


def test_a_newsletter_is_keyed_as_the_contract_says_and_skipped_by_either_key(client: Client) -> None:
    payload = normalized(client, "email", LETTER)
    first = inserted(client, payload)
    without_id = inserted(client, normalized(client, "email", {**LETTER, "source": {"date": "2026-02-17"}}))

    assert payload["idempotency_key_primary"] == "<1@example.com>"
    assert payload["idempotency_key_secondary"] == "13ac7956ddc1bf2f5676a1a2b2f5933923420f0854f34e663848d9e78d5ecf0e"
    assert (without_id["action"], without_id["matched_on"]) == ("skipped", "secondary")
    assert without_id["id"] == first["id"]


def test_a_raw_mail_is_normalized_like_its_parts(client: Client) -> None:
    raw = (
        b"From: Sender <Sender@example.com>\r\nSubject: Weekly update\r\nMessage-ID: <1@example.com>\r\n"
        b"Date: Tue, 17 Feb 2026 12:00:00 +0000\r\n\r\nAll the news\r\n"
    )
    headers = {"Content-Type": "message/rfc822"}
    mail = client.post("/normalize/email", content=raw, headers=headers)
    as_thread = client.post("/normalize/email?content_type=correspondence", content=raw, headers=headers)
    by_reference = "content_type=correspondence&thread_policy=email_correspondence_thread_v2"
    as_new_thread = client.post(f"/normalize/email?{by_reference}", content=raw, headers=headers)
    parts = normalized(client, "email", LETTER)

    keys = ("idempotency_policy_key", "idempotency_key_primary", "idempotency_key_secondary", "content_type")
    assert mail.status_code == 200, mail.text
    assert {name: mail.json()[name] for name in keys} == {name: parts[name] for name in keys}
    assert mail.json()["clean_text"] == parts["clean_text"]
    assert as_thread.json()["idempotency_policy_key"] == "email_correspondence_thread_v1"
    assert as_new_thread.json()["idempotency_policy_key"] == "email_correspondence_thread_v2"
    assert client.post("/normalize/email?thread_policy=x", json=LETTER).status_code == 400
    assert set(mail.json()) == set(parts)


def test_mails_of_one_thread_are_one_entry(client: Client) -> None:
    for number, subject in enumerate(("Lunch?", "Re: Lunch?", "RE: [team] lunch?")):
        sent = {**LETTER, "content_type": "correspondence", "subject": subject, "source": {"message_id": str(number)}}
        last = inserted(client, normalized(client, "email", sent))

    assert (last["action"], last["external_ref"]) == ("updated", "<2>")
    assert len({one["entity_id"] for one in events(client)}) == 1


def test_a_payload_without_keys_is_inserted_every_time_unless_its_source_needs_keys(client: Client) -> None:
    first, second = inserted(client, PLAIN), inserted(client, PLAIN)

    assert [first["action"], second["action"]] == ["inserted", "inserted"]
    assert first["id"] != second["id"]
    for source in ("email", " Telegram ", "EMAIL-import", "telegram_bot"):
        body = problem(insert(client, {**PLAIN, "source": source}), 400)
        assert body["errors"][0]["field"] == "idempotency_policy_key"


def test_a_row_that_was_read_is_a_valid_payload(client: Client) -> None:
    first = inserted(client, thought(1))
    row = {name: first[name] for name in COLUMNS}
    again = inserted(client, {**row, "idempotency_policy_key": "telegram_thought_v1", "entry_id": 999})

    assert (again["action"], again["changed"], again["entry_id"]) == ("updated", False, first["entry_id"])


def test_keys_of_two_entries_are_reported_and_refused_with_strict(client: Client, database: Database) -> None:
    one, other = inserted(client, newsletter("<1>", "s1")), inserted(client, newsletter("<2>", "s2"))
    there = row_counts(client, database)
    both = newsletter("<1>", "s2")

    split = inserted(client, both)
    strict = insert(client, {**both, "strict": True})

    assert (split["action"], split["matched_on"], split["id"]) == ("skipped", "primary", one["id"])
    assert split["split_with"] == [other["id"]]
    assert problem(strict, 409)["code"] == "conflict"
    assert row_counts(client, database) == there


def test_metadata_is_merged_and_null_overwrites(client: Client) -> None:
    inserted(client, thought(1, metadata={"a": {"x": 1, "y": [1, 2]}, "b": 1}))
    second = inserted(client, thought(1, metadata={"a": {"y": [3], "z": None}, "b": None}))

    assert second["metadata"] == {"a": {"x": 1, "y": [3], "z": None}, "b": None}


DEEP: Any = "x"
for _ in range(70):
    DEEP = [DEEP]

WRONG: dict[str, tuple[str, Any, str | None]] = {
    "a list": ("/db/insert", [PLAIN], "body"),
    "a number": ("/db/insert", 5, "body"),
    "nothing": ("/db/insert", {}, "source"),
    "no source": ("/db/insert", {"title": "x"}, "source"),
    "blank source": ("/db/insert", {"source": " "}, "source"),
    "unknown column": ("/db/insert", {**PLAIN, "colour": "red"}, "colour"),
    "number as title": ("/db/insert", {**PLAIN, "title": 5}, "title"),
    "list as metadata": ("/db/insert", {**PLAIN, "metadata": []}, "metadata"),
    "deep metadata": ("/db/insert", {**PLAIN, "metadata": {"a": DEEP}}, "request"),
    "nul": ("/db/insert", {**PLAIN, "title": "a\0b"}, "request"),
    "half a character": ("/db/insert", {**PLAIN, "title": "\ud800"}, "request"),
    "strict is a text": ("/db/insert", {**PLAIN, "strict": "yes"}, "strict"),
    "unknown policy": ("/db/insert", thought(1, idempotency_policy_key="x"), "idempotency_policy_key"),
    "disabled policy": (
        "/db/insert",
        {
            **newsletter("<1>", None),
            "content_type": "correspondence_thread",
            "idempotency_policy_key": "email_correspondence_thread_v2",
        },
        "idempotency_policy_key",
    ),
    "policy of another source": ("/db/insert", thought(1, source="email"), "idempotency_policy_key"),
    "policy of another type": ("/db/insert", thought(1, content_type="link"), "idempotency_policy_key"),
    "blank key": ("/db/insert", newsletter(" ", "x"), "idempotency_key_primary"),
    "no key": ("/db/insert", newsletter(None, None), "idempotency_key_primary"),
    "key without a policy": ("/db/insert", {**PLAIN, "idempotency_key_primary": "x"}, "idempotency_policy_key"),
    "a hint alone": (
        "/db/insert",
        thought(1, idempotency_key_primary=None, idempotency_key_secondary="x"),
        "idempotency_key_primary",
    ),
    "another policy's id": ("/db/insert", thought(1, idempotency_policy_id=4), "idempotency_policy_id"),
    "long key": ("/db/insert", newsletter("x" * 513, None), "idempotency_key_primary"),
    "items is an object": ("/db/insert", {"items": {}}, "items"),
    "columns beside items": ("/db/insert", {"items": [], "source": "notes"}, "source"),
    "strict beside items is a text": ("/db/insert", {"items": [PLAIN], "strict": "yes"}, "strict"),
    "telegram: nothing": ("/normalize/telegram", {}, "text"),
    "telegram: a list": ("/normalize/telegram", [], "body"),
    "telegram: no message id": ("/normalize/telegram", {"text": "x", "source": {"chat_id": 1}}, "source.message_id"),
    "telegram: id is a fraction": (
        "/normalize/telegram",
        {"text": "x", "source": {"chat_id": 1.5, "message_id": 1}},
        "source.chat_id",
    ),
    "telegram: no such type": ("/normalize/telegram", {**THOUGHT, "content_type": "song"}, "content_type"),
    "email: nothing": ("/normalize/email", {}, "raw_text"),
    "email: a text": ("/normalize/email", "x", "body"),
    "email: blank thread": (
        "/normalize/email",
        {**LETTER, "subject": "Re: [x]", "content_type": "correspondence"},
        "subject",
    ),
    "email: no key": ("/normalize/email", {"raw_text": "x", "from": "a@b", "subject": "s"}, "source.message_id"),
    "email: type in the address": ("/normalize/email?content_type=newsletter", LETTER, "content_type"),
}


def test_an_invalid_payload_is_400_with_the_field_and_nothing_is_written(client: Client, database: Database) -> None:
    inserted(client, PLAIN)
    there = row_counts(client, database)
    for name, (path, sent, field) in WRONG.items():
        # Half of a character can only be sent as an escape.
        body = json.dumps(sent).encode()
        refusal = problem(client.post(path, content=body, headers={"Content-Type": "application/json"}), 400)

        assert refusal["errors"][0]["field"] == field, (name, refusal)
        assert row_counts(client, database) == there, name


@pytest.mark.parametrize("path", ["/db/insert", "/normalize/telegram", "/normalize/email"])
def test_invalid_json_is_distinguished_from_an_invalid_payload(client: Client, path: str) -> None:
    as_form = client.post(path, content=b"source=notes", headers={"Content-Type": "application/x-www-form-urlencoded"})
    twice = client.post(path, content=b'{"a":1,"a":2}', headers={"Content-Type": "application/json"})
    empty = client.post(path)
    packed = client.post(path, content=b"x", headers={"Content-Type": "application/json", "Content-Encoding": "gzip"})

    for answer, status in ((as_form, 415), (twice, 400), (empty, 400), (packed, 415)):
        problem(answer, status)
