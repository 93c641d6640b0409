"""Omitted, null and ignored fields in requests about tasks."""

from __future__ import annotations

import base64
import fcntl
import hashlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.hub.hub_process import running_hub
from tests.hub.in_process_hub import Client
from tests.hub.raw_client import Caller
from tests.hub.tasks_hub import UPLOADS, attach, form, tasks_hub, upload
from tests.waiting import until

from onceward.hub.app import UPLOADERS


@pytest.fixture
def sqlite_client(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Client]:
    with tasks_hub("sqlite-folder", request, tmp_path) as client:
        yield client


def test_admin_requests_need_no_body(sqlite_client: Client, tmp_path: Path) -> None:
    made = attach(sqlite_client, b"what was sent")
    file = tmp_path / "blobs/sha256" / made["sha256"][:2] / made["sha256"][2:4] / made["sha256"]
    file.chmod(0o600)
    file.write_bytes(b"what was kept")

    counted, checked = sqlite_client.post("/v1/admin/gc-blobs"), sqlite_client.post("/v1/admin/fsck")

    assert (counted.status_code, counted.json()["dry_run"]) == (200, True)
    (damage,) = checked.json()["damaged"]
    assert (damage["problem"], damage["quarantined"]) == ("wrong-content", True)


def test_null_counts_as_absent_for_every_field_of_a_link(sqlite_client: Client) -> None:
    fields = dict.fromkeys(("title", "expires_at", "media_type", "labels", "meta", "external_url"))

    answer = sqlite_client.post(f"{UPLOADS}/link", json={"kind": "spec", "repo_path": "a/b.txt", **fields})

    assert answer.status_code == 201
    assert answer.json()["labels"] == []
    assert "meta" not in answer.json()


def test_computed_fields_cannot_be_set_by_the_client(sqlite_client: Client) -> None:
    meta = '{"sniffed_media_type": "image/png", "archive": {"entries": 1}, "mine": 1}'

    made = attach(sqlite_client, b"plain text", ("meta", meta), name="a.txt")

    assert made["meta"] == {"mine": 1}


@pytest.mark.parametrize("key", [{}, {"Idempotency-Key": "k"}], ids=["no key", "key"])
def test_a_digest_of_the_file_is_accepted_like_one_of_the_whole_form(
    sqlite_client: Client, key: dict[str, str]
) -> None:
    def digest(data: bytes) -> dict[str, str]:
        return {"Repr-Digest": f"sha-256=:{base64.b64encode(hashlib.sha256(data).digest()).decode()}:"}

    parts = (("kind", "artifact"), ("content", b"12345", "a.txt"))
    body, kind = form(parts, "one")

    of_file = upload(sqlite_client, *parts, headers={**digest(b"12345"), **key}, boundary="one")
    of_form = sqlite_client.post(UPLOADS, content=body, headers={**kind, **digest(body)})
    wrong = upload(sqlite_client, *parts, headers=digest(b"other"))

    assert [answer.status_code for answer in (of_file, of_form, wrong)] == [201, 201, 400]


def test_uploads_that_wait_for_the_blob_folder_do_not_delay_other_requests(tmp_path: Path) -> None:
    with running_hub(data_dir=tmp_path / "data") as hub:
        ask = Caller(hub.port)
        assert ask.post("/v1/tasks", {"id": "t1", "title": "T"}).status == 201
        with (tmp_path / "data/blobs/lock").open("w") as lock, ThreadPoolExecutor(40) as threads:
            fcntl.flock(lock, fcntl.LOCK_EX)
            waiting = [threads.submit(_send, hub.port, number) for number in range(40)]
            temp_files = tmp_path / "data/blobs/tmp"
            until(lambda: len(list(temp_files.iterdir())) >= UPLOADERS, "as many uploads as may run wait for the lock")

            answer = ask.post("/api/v1/topics", {"title": "Meanwhile"})

            assert not any(one.done() for one in waiting)
            fcntl.flock(lock, fcntl.LOCK_UN)
            answers = [one.result() for one in waiting]

    assert answer.status == 201
    assert answers == [201] * 40


def _send(port: int, number: int) -> int:
    body, headers = form((("kind", "artifact"), ("content", f"{number}".encode(), "a.txt")))
    return Caller(port)("POST", UPLOADS, data=body, headers={"Content-Type": headers["content-type"]}).status
