"""A hub for the tests of ingest, their requests, and the rows of its two schemas."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import sqlalchemy
from tests.hub.in_process_hub import Client, in_process_hub

from onceward.hub.config.config import Config, HubSettings, IngestSettings
from onceward.hub.db.engine import Database

SCHEMAS = ("pkm", "pkm_test")
THOUGHT: dict[str, Any] = {"text": "Buy milk", "source": {"chat_id": 7, "message_id": 42}}
LINK: dict[str, Any] = {"text": "See https://Example.com/Path/?utm_source=x&b=2&a=1#frag"}
LETTER: dict[str, Any] = {
    "raw_text": "All the news",
    "from": "Sender <Sender@example.com>",
    "subject": "Weekly update",
    "source": {"message_id": "<1@example.com>", "date": "2026-02-17"},
}
# A payload of another program, without the normalizers.
PLAIN: dict[str, Any] = {"source": "notes", "title": "By hand"}


@contextmanager
def ingest_hub(database_url: str, tmp_path: Path, settings: IngestSettings | None = None) -> Iterator[Client]:
    """A whole hub in this process, on a database that has its tables."""
    hub = HubSettings(data_dir=str(tmp_path), database=database_url, ledger=f"sqlite:///{tmp_path}/keys.db")
    with in_process_hub(Config(hub, ingest=settings or IngestSettings())) as client:
        yield client


def thought(number: int, text: str = "Buy milk", **more: Any) -> dict[str, Any]:
    """The payload of a message, as its normalizer returns it, without the fields that do not matter here."""
    return {
        "source": "telegram",
        "content_type": "thought",
        "clean_text": text,
        "idempotency_policy_key": "telegram_thought_v1",
        "idempotency_key_primary": f"tg:7:{number}",
        **more,
    }


def newsletter(primary: str | None, secondary: str | None, **more: Any) -> dict[str, Any]:
    return {
        "source": "email",
        "content_type": "newsletter",
        "idempotency_policy_key": "email_newsletter_v1",
        "idempotency_key_primary": primary,
        "idempotency_key_secondary": secondary,
        **more,
    }


def normalized(client: Client, sort: str, sent: dict[str, Any]) -> dict[str, Any]:
    answer = client.post(f"/normalize/{sort}", json=sent)
    assert answer.status_code == 200, answer.text
    payload: dict[str, Any] = answer.json()
    return payload


def inserted(client: Client, payload: dict[str, Any], key: str | None = None) -> dict[str, Any]:
    answer = insert(client, payload, key)
    assert answer.status_code == 200, answer.text
    shown: dict[str, Any] = answer.json()
    return shown


def insert(client: Client, payload: Any, key: str | None = None) -> httpx.Response:
    return client.post("/db/insert", json=payload, headers={} if key is None else {"Idempotency-Key": key})


def switch(client: Client, *, enabled: bool) -> None:
    answer = client.put("/test-mode", json={"enabled": enabled})
    assert (answer.status_code, answer.json()) == (200, {"enabled": enabled})


def problem(answer: httpx.Response, status: int) -> dict[str, Any]:
    """Check that the response is a problem with this status, and return it."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    body: dict[str, Any] = answer.json()
    assert body["status"] == status
    if status == 400:
        assert body["errors"]
        assert all(one["field"] and one["message"] for one in body["errors"])
    return body


def rows(database: Database, schema: str) -> list[dict[str, Any]]:
    """Return the entries of a schema, in the order of their creation."""
    name = f"{schema}_entries" if database.is_sqlite else f"{schema}.entries"
    with database.read() as tx:
        found = tx.execute(sqlalchemy.text(f"SELECT * FROM {name} ORDER BY entry_id"))  # noqa: S608  # names of our own
        return [dict(row._mapping) for row in found]


def events(client: Client) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = client.get("/api/v1/events", params={"limit": 500}).json()["events"]
    return found


def row_counts(client: Client, database: Database) -> tuple[int, ...]:
    """Return the number of entries and events, which a refused request must not change."""
    return (*(len(rows(database, schema)) for schema in SCHEMAS), len(events(client)))
