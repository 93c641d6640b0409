"""Limits of the chat over HTTP: the refusals, and that nothing of a refused message is stored."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.hub.in_process_hub import Client, in_process_hub

from onceward.hub.config.config import Config, HubSettings, TurnsSettings
from onceward.hub.db.engine import open_database
from onceward.hub.db.migrate import migrate

PATHS = ["/chat", "/chat/stream"]


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    folder = tmp_path_factory.mktemp("limits")
    turns = TurnsSettings(brain="tests.hub.scripted_brain:brain", max_message_bytes=1000, max_bytes=2000, max_queued=2)
    config = Config(HubSettings(data_dir=str(folder), grace_seconds=0), turns=turns)
    database = open_database(config.database_url)
    migrate(database)
    database.close()
    with in_process_hub(config) as client:
        yield client


@pytest.fixture
def fifo(tmp_path: Path) -> Iterator[Path]:
    """The place where the brain waits; at the end, all brains continue."""
    path = tmp_path / "fifo"
    os.mkfifo(path)
    opened = os.open(path, os.O_RDWR)
    yield path
    os.write(opened, b"." * 100)


def chat(hub: Client, message: str, session: str, path: str = "/chat", key: str | None = None, **fields: Any) -> Any:
    headers = {} if key is None else {"Idempotency-Key": key}
    return hub.post(path, json={"message": message, "session_key": session, **fields}, headers=headers)


def status(hub: Client, turn_id: str) -> dict[str, Any]:
    shown: dict[str, Any] = hub.get(f"/turns/{turn_id}").json()
    return shown


@pytest.mark.parametrize("path", PATHS)
def test_a_message_over_its_limit_is_too_large_and_leaves_its_key_free(hub: Client, path: str) -> None:
    session, key = uuid.uuid4().hex, uuid.uuid4().hex
    for message, metadata in (("x" * 1001, {}), ("x", {"a": "y" * 1000})):
        refused = chat(hub, message, session, path, key, metadata=metadata)

        assert (refused.status_code, refused.json()["code"]) == (413, "payloadTooLarge")
        assert "turns.max_message_bytes" in refused.json()["detail"]
    taken = chat(hub, "x" * 1000, session, key=key)

    assert (taken.status_code, taken.json()["status"]) == (200, "processing")


@pytest.mark.parametrize("path", PATHS)
def test_a_session_with_a_full_queue_is_told_to_retry(hub: Client, fifo: Path, path: str) -> None:
    session, key = uuid.uuid4().hex, uuid.uuid4().hex
    first = chat(hub, f"hold {fifo} ".ljust(1000), session).json()["turn_id"]
    supersedes = chat(hub, "a" * 900, session).json()["turn_id"]
    queued = [chat(hub, one * 900, session).json()["turn_id"] for one in "bc"]

    refused = chat(hub, "d", session, path, key)

    assert (refused.status_code, refused.json()["code"], refused.json()["title"]) == (
        429, "tooManyRequests", "Too Many Requests",
    )  # fmt: skip
    assert int(refused.headers["Retry-After"]) == refused.json()["retry_after"] >= 1
    assert status(hub, first)["superseded_by"] == supersedes
    assert len(status(hub, supersedes)["messages"]) == 2
    assert [status(hub, one)["reason"] for one in queued] == ["turn_full", "turn_full"]
    other = chat(hub, "d", f"{session}-other", key=key)
    assert other.status_code == 200, "the key was not free"
