"""Ingest and attachments over real HTTP, as a program outside of the hub sees them."""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.forked_python import forked_python
from tests.hub.hub_process import RunningHub, environment, running_hub
from tests.hub.tasks_hub import UPLOADS, form
from tests.waiting import until

ALLOWED = {"ONCEWARD_ATTACHMENTS__ALLOWED_MEDIA_TYPES": "image/*"}
SIZE = 4 * 1024 * 1024
PNG = b"\x89PNG\r\n\x1a\n" + bytes(32)
UPDATE = {
    "update_id": 1,
    "message": {
        "message_id": 5,
        "from": {"id": 9, "first_name": "Ada"},
        "chat": {"id": -100_7, "type": "supergroup", "title": "Kitchen"},
        "date": 1_700_000_000,
        "text": "Buy milk",
    },
}
SHORT = {"text": "Buy milk", "source": {"chat_id": "-1007", "message_id": 5}}
REPLY = (
    b"From: Ada <ada@example.com>\nSubject: Re : Plan\nMessage-ID: <1@a>\nDate: Tue, 17 Feb 2026 12:00:00 +0000\n\nYes."
)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    with (
        running_hub(data_dir=tmp_path_factory.mktemp("data") / "data", env=ALLOWED) as hub,
        httpx.Client(base_url=hub.url) as client,
    ):
        _make_task(client)
        yield client


def _make_task(client: httpx.Client) -> None:
    client.post("/v1/tasks", json={"id": "t1", "title": "A task"}).raise_for_status()


def inserted(client: httpx.Client, payload: dict[str, Any]) -> dict[str, Any]:
    answer = client.post("/db/insert", json=payload)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def normalized(client: httpx.Client, sort: str, **sent: Any) -> dict[str, Any]:
    answer = client.post(f"/normalize/{sort}", **sent)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_a_message_in_a_shorter_form_erases_nothing(client: httpx.Client) -> None:
    first = inserted(client, normalized(client, "telegram", json=UPDATE))
    short = normalized(client, "telegram", json=SHORT)
    inserted(client, {**short, "title": "Milk"})

    again = [inserted(client, normalized(client, "telegram", json=sent)) for sent in (SHORT, UPDATE, SHORT)]

    assert {row["id"] for row in again} == {first["id"]}
    for row in again:
        assert (row["action"], row["changed"], row["title"], row["author"]) == ("updated", False, "Milk", "Ada")
        assert row["metadata"] == first["metadata"]
    assert inserted(client, {**short, "title": None})["title"] is None


def test_the_next_mail_of_a_thread_keeps_its_url(client: httpx.Client) -> None:
    mail = {"Content-Type": "message/rfc822"}
    first = normalized(client, "email", content=REPLY, headers=mail)
    inserted(client, {**first, "url": "https://mail.example.com/1"})

    answer = {"raw_text": "No.", "subject": "Fwd : RE: plan"}
    row = inserted(client, normalized(client, "email", json=answer))

    assert (row["action"], row["clean_text"]) == ("updated", "No.")
    assert (row["url"], row["author"], row["external_ref"]) == ("https://mail.example.com/1", "Ada", "<1@a>")


def test_one_url_in_several_spellings_is_one_entry(client: httpx.Client) -> None:
    spellings = [
        "https://example.com/~a/b%2Fc?q=1",
        "https://EXAMPLE.com./%7Ea/b%2fc?q=1",
        "https://example.com/~a/b%2Fc?UTM_Source=x&q=1&FbClid=y",
    ]
    others = ["https://example.com/~a/b/c?q=1", "https://example.com/~A/b%2Fc?q=1", "https://example.com/~a/b%2Fc?Q=1"]

    rows = [inserted(client, normalized(client, "telegram", json={"text": url})) for url in (*spellings, *others)]

    assert [row["action"] for row in rows] == ["inserted", "skipped", "skipped", *["inserted"] * 3]
    assert [row["matched_on"] for row in rows[:3]] == [None, "primary", "secondary"]
    assert rows[0]["url"] == spellings[0]


def test_an_id_out_of_range_is_reported_with_the_range(client: httpx.Client) -> None:
    answer = client.post("/normalize/telegram", json={"text": "a", "source": {"chat_id": 2**63, "message_id": 1}})

    assert answer.status_code == 400
    assert answer.json()["errors"] == [
        {
            "field": "source.chat_id",
            "message": "must be a whole number from -9223372036854775808 to 9223372036854775807,"
            " got 9223372036854775808",
        }
    ]


@pytest.mark.parametrize(
    ("content", "name", "declared", "status"),
    [
        (b"plain text", "a", "image/svg+xml", 400),
        (b"plain text", "a.svg", "", 400),
        (b"", "a.svg", "image/svg+xml", 400),
        (b'<svg xmlns="http://www.w3.org/2000/svg"/>', "a", "image/svg+xml", 201),
        (PNG, "a", "", 201),
    ],
)
def test_the_allow_list_applies_to_the_bytes(
    client: httpx.Client, content: bytes, name: str, declared: str, status: int
) -> None:
    body, headers = form([("kind", "artifact"), ("content", content, name), ("media_type", declared)])

    assert client.post(UPLOADS, content=body, headers=headers).status_code == status


def test_gc_leaves_an_upload_in_progress_and_removes_what_a_killed_hub_left(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    with running_hub(data_dir=data_dir) as hub, httpx.Client(base_url=hub.url) as client:
        _make_task(client)
        with StalledUpload(hub, data_dir) as temporary:
            now = {"dry_run": False, "grace_seconds": 0}
            alive = client.post("/v1/admin/gc-blobs", json=now, headers={"X-Confirm": "true"}).json()
            assert temporary.exists()
            hub.process.kill()
            hub.wait()
            size = temporary.stat().st_size
            dead = [run_gc(data_dir, option) for option in ("--dry-run", "--apply")]

    assert (alive["orphan_count"], alive["reclaimed_bytes"]) == (0, 0)
    assert [(one["orphan_count"], one["reclaimed_bytes"]) for one in dead] == [(1, size)] * 2
    assert size >= SIZE // 2
    assert list((data_dir / "blobs" / "tmp").iterdir()) == []


class StalledUpload:
    """An upload that stops in the middle and stays connected. The block gets its temporary file."""

    def __init__(self, hub: RunningHub, data_dir: Path) -> None:
        self._hub, self._folder = hub, data_dir / "blobs" / "tmp"

    def __enter__(self) -> Path:
        body, headers = form([("kind", "artifact"), ("content", b"x" * SIZE, "a.bin")])
        lines = [f"POST {UPLOADS} HTTP/1.1", "Host: 127.0.0.1", f"Content-Length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        self._connection = socket.create_connection(("127.0.0.1", self._hub.port), 20)
        self._connection.sendall("\r\n".join([*lines, "", ""]).encode() + body[: SIZE * 3 // 4])
        until(lambda: any(file.stat().st_size >= SIZE // 2 for file in self._folder.iterdir()), "no upload came")
        (file,) = self._folder.iterdir()
        return file

    def __exit__(self, *_: object) -> None:
        self._connection.close()


def run_gc(data_dir: Path, option: str) -> dict[str, Any]:
    arguments = ["admin", "gc-blobs", option, "--grace", "0", "--json", "--data-dir", str(data_dir)]
    command = [forked_python("onceward.hub.app"), "-m", "onceward", *arguments]
    done = subprocess.run(command, env=environment(), stdout=subprocess.PIPE, check=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found
