"""Admin routes over HTTP: quota and usage of principals, and the progress of long operations."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from sqlalchemy import text
from tests.hub.in_process_hub import Client
from tests.hub.tasks_hub import attach, problem, tasks_hub, upload

from onceward.hub.config import data_folder
from onceward.hub.config.config import AttachmentsSettings, Config, HubSettings

USAGE = "/v1/admin/usage"
LINES = {"accept": "application/x-ndjson"}


@pytest.fixture
def client(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Client]:
    """A hub on which each principal may store 10 bytes."""
    with tasks_hub("sqlite-folder", request, tmp_path, AttachmentsSettings(max_bytes_per_principal=10)) as client:
        yield client


def test_an_upload_over_the_quota_is_a_413_that_a_retry_with_the_same_key_does_not_replay(client: Client) -> None:
    parts = (("kind", "artifact"), ("content", b"second", "a.bin"))
    first = attach(client, b"first")
    attach(client, b"...")
    refused = problem(upload(client, *parts, headers={"idempotency-key": "k"}), 413)
    used = client.get(USAGE).json()
    client.request("DELETE", f"/v1/attachments/{first['id']}")
    again = upload(client, *parts, headers={"idempotency-key": "k"})

    assert refused["code"] == "payloadTooLarge"
    assert refused["detail"].startswith("6 bytes do not fit into the quota of 'local': 8 of 10 bytes are used")
    assert used == {
        "usage": [{"principal": "local", "stored_bytes": 8, "attachment_count": 2}],
        "max_bytes_per_principal": 10,
        "next_after": None,
        "has_more": False,
    }
    assert (again.status_code, again.headers.get("idempotent-replayed")) == (201, None)


def test_a_long_upload_over_the_quota_is_refused_before_it_is_received(client: Client) -> None:
    async def endless() -> AsyncIterator[bytes]:
        yield b"--x\r\n"
        raise AssertionError("more than the first piece was read")

    headers = {"content-type": "multipart/form-data; boundary=x", "content-length": str(10 * 1024**2)}
    refused = client.post("/v1/tasks/t1/attachments", content=endless(), headers=headers)

    assert "0 of 10 bytes are used" in problem(refused, 413)["detail"]


def test_the_metrics_show_the_bytes_of_each_principal_and_the_quota(client: Client) -> None:
    attach(client, b"1234")
    shown = client.get("/metrics").text.splitlines()

    assert 'onceward_stored_bytes{principal="local"} 4.0' in shown
    assert "onceward_stored_bytes_max 10.0" in shown


def test_fsck_corrects_counters_of_stored_bytes(client: Client, tmp_path: Path) -> None:
    attach(client, b"1234")
    config = Config(HubSettings(data_dir=str(tmp_path), database=f"sqlite:///{tmp_path}/hub.db"))
    with data_folder.opened(config) as database, database.write() as tx:
        tx.execute(text("UPDATE stored_bytes SET stored_bytes = 9"))
    reported = client.post("/v1/admin/fsck", json={"quarantine": False}).json()["wrong_counters"]
    corrected = client.post("/v1/admin/fsck", json={}).json()["wrong_counters"]

    assert [(one["counted_bytes"], one["stored_bytes"], one["corrected"]) for one in (*reported, *corrected)] == [
        (9, 4, False),
        (9, 4, True),
    ]
    assert client.post("/v1/admin/fsck", json={}).json() == {"damaged": [], "wrong_counters": []}


@pytest.mark.parametrize(
    ("path", "total", "unit"), [("/v1/admin/gc-blobs", 2, "files"), ("/v1/admin/fsck", 7, "bytes")]
)
def test_a_long_operation_reports_its_progress_and_then_its_result(
    client: Client, path: str, total: int, unit: str
) -> None:
    for content in (b"123", b"1234"):
        attach(client, content)
    response = client.post(path, json={}, headers=LINES)
    plain = client.post(path, json={})
    *progress, last = [json.loads(line) for line in response.text.splitlines()]

    assert response.headers["content-type"].startswith("application/x-ndjson")
    # Lines come at most twice in a second, so the first is the only certain one.
    assert progress[0]["progress"].items() >= {"total": total, "unit": unit}.items()
    assert 0 <= progress[0]["progress"]["done"] <= total
    assert last == {"result": plain.json()}


def test_an_operation_that_is_refused_at_once_is_a_problem_with_its_status(client: Client, tmp_path: Path) -> None:
    (tmp_path / "blobs" / "owner").write_text("another database", "utf-8")

    assert "another database" in problem(client.post("/v1/admin/gc-blobs", json={}, headers=LINES), 409)["detail"]
