"""A hub with tasks for the tests, and helpers for requests to it."""

from __future__ import annotations

import dataclasses
import secrets
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.backends import Servers
from tests.hub.in_process_hub import Client, in_process_hub
from tests.hub.tasks import backends

from onceward.hub.config.config import AttachmentsSettings, Config, HubSettings

UPLOADS = "/v1/tasks/t1/attachments"
# A field or a file: its name, its content, the name of the file, its media type.
Part = tuple[str, bytes | str] | tuple[str, bytes | str, str] | tuple[str, bytes | str, str, str]


@contextmanager
def tasks_hub(
    place: str,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    settings: AttachmentsSettings | None = None,
    gc_interval: float = 0.0,
) -> Iterator[Client]:
    """A whole hub in this process with a task, `t1`; its temporary files are in the test's folder."""
    servers: Servers = request.getfixturevalue("servers")
    monkeypatch: pytest.MonkeyPatch = request.getfixturevalue("monkeypatch")
    if place.endswith("s3"):
        request.getfixturevalue("s3_server")
    hub = HubSettings(
        data_dir=str(tmp_path),
        database=backends.database_url(place, servers, tmp_path),
        ledger=f"sqlite:///{tmp_path}/keys.db",
        blobs=backends.blobs_url(place, servers, tmp_path),
    )
    # Not earlier: the servers have temporary files, too, and may run as another user.
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    # Tests decide when gc runs: the hub does not run it by itself, unless configured.
    attachments = dataclasses.replace(settings or AttachmentsSettings(), gc_interval=gc_interval)
    with in_process_hub(Config(hub, attachments=attachments)) as client:
        assert client.post("/v1/tasks", json={"id": "t1", "title": "A task"}).status_code == 201
        yield client


def form(parts: Sequence[Part], boundary: str = "") -> tuple[bytes, dict[str, str]]:
    """Return the multipart body of these parts, byte for byte, and its header."""
    boundary = boundary or secrets.token_hex(8)
    body = b""
    for part in parts:
        name, content, *more = part
        disposition = f'form-data; name="{name}"' + (f'; filename="{more[0]}"' if more else "")
        kind = f"\r\nContent-Type: {more[1]}" if len(more) > 1 else ""
        raw = content.encode() if isinstance(content, str) else content
        body += f"--{boundary}\r\nContent-Disposition: {disposition}{kind}\r\n\r\n".encode() + raw + b"\r\n"
    return body + f"--{boundary}--\r\n".encode(), {"content-type": f"multipart/form-data; boundary={boundary}"}


def upload(client: Client, *parts: Part, headers: dict[str, str] | None = None, **more: Any) -> httpx.Response:
    body, kind = form(parts, more.pop("boundary", ""))
    return client.post(more.pop("path", UPLOADS), content=body, headers={**kind, **(headers or {})}, **more)


def attach(client: Client, content: bytes, *parts: Part, name: str = "a.bin", **more: Any) -> dict[str, Any]:
    """Attach a file, which must succeed, and return the attachment."""
    answer = upload(client, ("kind", "artifact"), ("content", content, name), *parts, **more)
    assert answer.status_code == 201, answer.text
    shown: dict[str, Any] = answer.json()
    return shown


def problem(answer: httpx.Response, status: int) -> dict[str, Any]:
    """Check that the response is a problem with this status, and return it."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    body: dict[str, Any] = answer.json()
    assert body["status"] == status
    return body


def left_over(folder: Path) -> list[Path]:
    """Return the temporary files of uploads."""
    return [file for file in folder.rglob("*") if file.suffix == ".part" or file.parent.name == "tmp"]
