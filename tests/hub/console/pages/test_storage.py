"""Garbage collection as a plan that is then applied, and the check of stored bytes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.hub.console.no_script_browser import NoScriptBrowser
from tests.hub.in_process_hub import Client, in_process_hub

from onceward.hub.config.config import AttachmentsSettings, Config

FORM = "/console/storage"


@pytest.fixture
def client(config: Config) -> Iterator[Client]:
    """A hub without the periodic gc, which would delete the blob of these tests as soon as its task is deleted."""
    with in_process_hub(replace(config, attachments=AttachmentsSettings(gc_grace=0.0, gc_interval=0.0))) as client:
        client.post("/v1/tasks", json={"id": "t1", "title": "Paint the shed"})
        files = {"content": ("plan.txt", b"Paint it green.")}
        client.post("/v1/tasks/t1/attachments", data={"kind": "spec"}, files=files)
        yield client


def test_nothing_is_deleted_before_the_plan_is_applied(
    client: Client, browser: NoScriptBrowser, tmp_path: Path
) -> None:
    client.request("DELETE", "/v1/tasks/t1")

    def stored() -> int:
        return sum(file.is_file() for file in (tmp_path / "blobs" / "sha256").rglob("*"))

    page = browser.get(FORM)
    planned = browser.send(page, FORM, action="plan")
    between = stored()
    done = browser.send(planned, FORM, action="apply")

    assert "1 blob, 0 expired attachments and 0 orphans would be deleted: 15 bytes" in planned.text
    assert between == 1
    assert "1 blob was deleted, 15 bytes freed" in done.text
    assert stored() == 0
    assert browser.send(page, FORM, action="all").status == 400


def test_a_damaged_blob_is_named(client: Client, browser: NoScriptBrowser, tmp_path: Path) -> None:
    page = browser.get(FORM)
    sound = browser.send(page, FORM, action="check")
    (file,) = [one for one in (tmp_path / "blobs" / "sha256").rglob("*") if one.is_file()]
    file.chmod(0o600)
    file.write_bytes(b"Paint it white.")
    damaged = browser.send(page, FORM, action="check")

    assert client.get("/healthz").status_code == 200
    assert "All bytes are as they were stored." in sound.text
    assert "1 blob is damaged." in damaged.text
