"""Topics, messages and attachments over HTTP, on both databases."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.hub.in_process_hub import Client, in_process_hub

from onceward.hub.config.config import Config, HubSettings
from onceward.hub.db.engine import Database


@pytest.fixture
def client(database: Database, database_url: str, tmp_path: Path) -> Iterator[Client]:
    """A whole hub in this process, on a database that has its tables."""
    assert database is not None
    config = Config(HubSettings(data_dir=str(tmp_path), database=database_url, ledger=f"sqlite:///{tmp_path}/keys.db"))
    with in_process_hub(config) as client:
        yield client


@pytest.fixture
def topic_id(client: Client) -> str:
    made = client.post("/api/v1/topics", json={"title": "One"})
    assert made.status_code == 201
    return str(made.json()["topic"]["id"])


def attachments(topic_id: str) -> str:
    return f"/api/v1/topics/{topic_id}/attachments"


CITATION: dict[str, Any] = {
    "kind": "citation",
    "key": "url",
    "value_json": {"url": "https://example.com", "title": "Example"},
    "dedupe_key": "url:https://example.com",
}


def test_a_topic_is_created_listed_and_found(client: Client) -> None:
    first = client.post("/api/v1/topics", json={"title": "One"}).json()
    second = client.post("/api/v1/topics", json={"title": "Zwei ä"}).json()

    assert set(first) == {"topic", "event_id"}
    assert set(first["topic"]) == {"id", "title", "created_at"}
    assert (first["event_id"], second["event_id"]) == (1, 2)
    assert client.get("/api/v1/topics").json()["topics"] == [second["topic"], first["topic"]]
    assert client.get("/api/v1/topics?limit=1").json()["topics"] == [second["topic"]]
    assert client.get(f"/api/v1/topics/{first['topic']['id']}").json() == {"topic": first["topic"]}


def test_messages_are_posted_and_listed(client: Client, topic_id: str) -> None:
    path = f"/api/v1/topics/{topic_id}/messages"
    posted = [client.post(path, json={"sender": "ada", "content": text}).json() for text in ("one", "two")]

    assert set(posted[0]) == {"message", "event_id"}
    assert posted[0]["message"]["topic_id"] == topic_id
    assert client.get(path).json()["messages"] == [posted[1]["message"], posted[0]["message"]]


def test_a_new_attachment_is_201_with_an_event_and_a_duplicate_is_200_without(client: Client, topic_id: str) -> None:
    first = client.post(attachments(topic_id), json=CITATION)
    again = client.post(attachments(topic_id), json=CITATION)
    other = client.post(attachments(topic_id), json={**CITATION, "value_json": {"url": "https://example.com"}})

    assert first.status_code == 201
    assert first.json()["event_id"] == 2
    assert set(first.json()["attachment"]) == {
        "id", "topic_id", "kind", "key", "value_json", "dedupe_key", "source_message_id", "created_at",
    }  # fmt: skip
    assert again.status_code == other.status_code == 200
    assert again.json() == {"attachment": first.json()["attachment"], "event_id": None}
    assert other.json() == {"attachment": first.json()["attachment"], "event_id": None, "value_differs": True}
    assert client.get("/api/v1/events").json()["next_after"] == 2


def test_with_a_key_a_retry_gets_the_first_response_unchanged(client: Client, topic_id: str) -> None:
    headers = {"Idempotency-Key": "k"}
    first = client.post(attachments(topic_id), json=CITATION, headers=headers)
    again = client.post(attachments(topic_id), json=CITATION, headers=headers)
    reused = client.post(attachments(topic_id), json={**CITATION, "key": "x"}, headers=headers)

    assert again.status_code == first.status_code == 201
    assert again.content == first.content
    assert again.headers["Idempotent-Replayed"] == "true"
    assert reused.status_code == 422
    assert reused.json()["detail"] == "Idempotency key already used with different request"


def test_null_counts_as_absent_and_a_null_key_equals_an_empty_key(client: Client, topic_id: str) -> None:
    plain = client.post(attachments(topic_id), json={"kind": "note", "value_json": {"a": 1, "b": 2}})
    same = client.post(
        attachments(topic_id),
        json={
            "kind": "note",
            "key": "",
            "value_json": {"b": 2.0, "a": 1},
            "dedupe_key": None,
            "source_message_id": None,
        },
    )

    assert plain.json()["attachment"]["dedupe_key"] == '{"a":1,"b":2}'
    assert same.json() == {"attachment": plain.json()["attachment"], "event_id": None}


def test_an_update_is_explicit(client: Client, topic_id: str) -> None:
    first = client.post(attachments(topic_id), json=CITATION).json()
    value = {"url": "https://example.com", "title": "Better"}

    changed = client.put(attachments(topic_id), json={**CITATION, "value_json": value})
    again = client.put(attachments(topic_id), json={**CITATION, "value_json": value})

    assert changed.status_code == again.status_code == 200
    assert changed.json() == {"attachment": {**first["attachment"], "value_json": value}, "event_id": 3}
    assert again.json() == {**changed.json(), "event_id": None}
    assert client.put(attachments(topic_id), json={**CITATION, "dedupe_key": "none"}).status_code == 404
    assert client.put(attachments(topic_id), json={**CITATION, "dedupe_key": None}).status_code == 400
    assert client.get("/api/v1/events").json()["events"][-1]["name"] == "topic.attachment_updated"


def test_attachments_are_listed_and_found_by_kind_key_and_dedupe_key(client: Client, topic_id: str) -> None:
    one = client.post(attachments(topic_id), json=CITATION).json()["attachment"]
    two = client.post(attachments(topic_id), json={"kind": "note", "value_json": {}}).json()["attachment"]
    path = attachments(topic_id)

    assert client.get(path).json()["attachments"] == [two, one]
    assert client.get(path, params={"kind": "citation"}).json()["attachments"] == [one]
    assert client.get(path, params={"key": "url"}).json()["attachments"] == [one]
    assert client.get(path, params={"key": ""}).json()["attachments"] == [two]
    assert client.get(path, params={"dedupe_key": "url:https://example.com"}).json()["attachments"] == [one]
    assert client.get(path, params={"limit": 1}).json()["attachments"] == [two]


WRONG: dict[str, tuple[str, str, Any, int]] = {
    "unknown topic": ("POST", "/api/v1/topics/top_none/attachments", CITATION, 404),
    "unknown topic, update": ("PUT", "/api/v1/topics/top_none/attachments", CITATION, 404),
    "unknown topic, message": ("POST", "/api/v1/topics/top_none/messages", {"sender": "a", "content": "b"}, 404),
    "unknown topic, list": ("GET", "/api/v1/topics/top_none/attachments", None, 404),
    "unknown topic, messages": ("GET", "/api/v1/topics/top_none/messages", None, 404),
    "unknown topic itself": ("GET", "/api/v1/topics/top_none", None, 404),
    "unknown message": ("POST", "attachments", {**CITATION, "source_message_id": "msg_none"}, 400),
    "blank dedupe_key": ("POST", "attachments", {**CITATION, "dedupe_key": " "}, 400),
    "value is a list": ("POST", "attachments", {**CITATION, "value_json": []}, 400),
    "value is missing": ("POST", "attachments", {"kind": "x"}, 400),
    "large value": ("POST", "attachments", {**CITATION, "value_json": {"a": "x" * 16_384}}, 413),
    "large integer": ("POST", "attachments", {"kind": "x", "value_json": {"n": 2**53}}, 400),
    "not a link": ("POST", "attachments", {"kind": "URL", "value_json": {"url": "javascript:x"}}, 400),
    "unknown field": ("POST", "attachments", {**CITATION, "dedupekey": "x"}, 400),
    "number as kind": ("POST", "attachments", {**CITATION, "kind": 5}, 400),
    "large message": ("POST", "messages", {"sender": "a", "content": "x" * 65_537}, 413),
    "limit of nothing": ("GET", "attachments?limit=0", None, 400),
    "limit too high": ("GET", "attachments?limit=501", None, 400),
    "limit not a number": ("GET", "attachments?limit=x", None, 400),
    "wrong method": ("DELETE", "attachments", None, 405),
}


def test_an_impossible_request_is_a_problem_and_nothing_is_written(client: Client, topic_id: str) -> None:
    for name, (method, path, body, status) in WRONG.items():
        where = path if path.startswith("/") else f"/api/v1/topics/{topic_id}/{path}"

        answer = client.request(method, where, json=body)

        assert answer.status_code == status, name
        assert answer.headers["content-type"] == "application/problem+json", name
        assert answer.json()["status"] == status, name
        assert client.get("/api/v1/events").json()["next_after"] == 1, name
    assert client.get(attachments(topic_id)).json()["attachments"] == []
    assert len(client.get("/api/v1/topics").json()["topics"]) == 1
