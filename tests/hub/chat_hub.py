"""A hub for tests of the chat: its messages, the place where its brain waits, and what it streams."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from tests.hub.hub_process import RunningHub, running_hub

BUSY = "Request is being processed. Retry in a moment."
COMPLETED = "This request was already completed. Use non-streaming endpoint to get response."
REUSED = "Idempotency key already used with different request"


@dataclass(frozen=True, slots=True)
class Fifo:
    """The place where the brain waits."""

    path: Path
    opened: int

    def release(self) -> None:
        """Let all brains continue, also those that arrive later."""
        os.write(self.opened, b"." * 100)

    def __str__(self) -> str:
        return str(self.path)


@dataclass(frozen=True, slots=True)
class ChatHub:
    """A hub with the brain of these tests, and its outside world."""

    hub: RunningHub
    client: httpx.Client
    folder: Path

    def chat(self, message: str, key: str | None = None, wait: int = 0, **fields: Any) -> httpx.Response:
        headers = {**({"Idempotency-Key": key} if key else {}), **({"Prefer": f"wait={wait}"} if wait else {})}
        return self.client.post("/chat", json={"message": message, **fields}, headers=headers)

    def done(self, message: str, **fields: Any) -> dict[str, Any]:
        answer = self.chat(message, wait=20, **fields)
        assert (answer.status_code, answer.json()["status"]) == (200, "complete"), answer.text
        body: dict[str, Any] = answer.json()
        return body

    def fifo(self) -> Fifo:
        path = self.folder / f"fifo-{uuid.uuid4().hex}"
        os.mkfifo(path)
        # Open for reading and writing, so that opening it does not block.
        return Fifo(path, os.open(path, os.O_RDWR))

    def turn(self, turn_id: str) -> dict[str, Any]:
        turn: dict[str, Any] = self.client.get(f"/turns/{turn_id}").json()
        return turn

    def state(self, turn_id: str) -> str:
        return str(self.turn(turn_id)["status"])

    def paid(self) -> list[str]:
        outside = self.folder / "outside"
        return outside.read_text().splitlines() if outside.exists() else []


@contextmanager
def open_chat_hub(folder: Path, more: Mapping[str, str] | None = None) -> Iterator[ChatHub]:
    env = {"OUTSIDE": str(folder / "outside"), "ONCEWARD_TURNS__API_TTL_SECONDS": "2", **(more or {})}
    with (
        running_hub(data_dir=folder / "data", args=("--brain", "tests.hub.scripted_brain:brain"), env=env) as hub,
        httpx.Client(base_url=hub.url, timeout=30) as client,
    ):
        yield ChatHub(hub, client, folder)


def events(text: str) -> list[tuple[str, str, Any]]:
    """Return the id, name and data of each event; an empty id if there is none."""
    found = []
    for block in text.strip().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if ": " in line)
        if "event" in fields:
            found.append((fields.get("id", ""), fields["event"], json.loads(fields["data"])))
    return found


def stream(chat_hub: ChatHub, message: str, *, last: str = "", query: str = "", **fields: Any) -> httpx.Response:
    headers = {"Last-Event-ID": last} if last else {}
    return chat_hub.client.post(f"/chat/stream{query}", json={"message": message, **fields}, headers=headers)
