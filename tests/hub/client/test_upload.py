"""Uploads with late or broken responses, of files that change, and a cancelled one."""

from __future__ import annotations

import asyncio
import io
import os
from pathlib import Path

import pytest
from tests.hub.client.conftest import RunWithHub
from tests.servers.scripted_http import Cut, ScriptedResponse, scripted

from onceward import errors
from onceward.hub.client import Hub

# More than the client buffers of a response.
CONTENT = os.urandom(2 * 1024 * 1024)


def test_every_attempt_of_an_upload_is_the_same_request(run_with_hub: RunWithHub) -> None:
    made = b'{"id":"at-1","task_id":"t","kind":"other","source_type":"managed_blob","media_type_source":"sniffed",'
    made += b'"labels":[],"created_at":"2026-01-01T00:00:00Z","updated_at":"2026-01-01T00:00:00Z"}'

    async def use(hub: Hub) -> str:
        return (await hub.attach_file("t", io.BytesIO(CONTENT), "other", labels=["a"])).id

    with scripted(ScriptedResponse(503), Cut(), Cut(read_body=False), ScriptedResponse(201, {}, made)) as server:
        assert run_with_hub(server.url, use) == "at-1"

        first, second, _, last = server.seen
        wanted = ("idempotency-key", "content-type", "content-digest", "content-length")
        assert len({tuple(seen.headers[name] for name in wanted) for seen in server.seen}) == 1
        assert first.body == second.body == last.body
        assert CONTENT in (first.body or b"")


def test_a_file_that_shrinks_while_it_is_sent_is_not_stored(url: str, run_with_hub: RunWithHub, tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(CONTENT)

    async def use(hub: Hub) -> None:
        task = await hub.create_task("Shorter")
        with pytest.raises(errors.InvalidInput, match="became shorter during the upload"):
            await hub.attach_file(task.id, path, "other", progress=lambda done, _total: os.truncate(path, done))
        assert await hub.task_attachments(task.id) == []

    run_with_hub(url, use)


def test_a_file_that_changes_while_it_is_sent_is_not_stored(url: str, run_with_hub: RunWithHub, tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(CONTENT)

    async def use(hub: Hub) -> None:
        task = await hub.create_task("Changed")
        with pytest.raises(errors.InvalidInput, match="digest"):
            await hub.attach_file(
                task.id, path, "other", progress=lambda _done, _total: path.write_bytes(bytes(len(CONTENT)))
            )
        assert await hub.task_attachments(task.id) == []

    run_with_hub(url, use)


def test_a_cancelled_upload_stops(url: str, run_with_hub: RunWithHub) -> None:
    async def use(hub: Hub) -> None:
        task = await hub.create_task("Cancelled")
        begun = asyncio.Event()
        sending = asyncio.create_task(
            hub.attach_file(task.id, io.BytesIO(CONTENT), "other", progress=lambda _done, _total: begun.set())
        )
        await begun.wait()
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        assert await hub.task_attachments(task.id) == []
        assert (await hub.attach_file(task.id, io.BytesIO(CONTENT), "other")).size_bytes == len(CONTENT)

    run_with_hub(url, use)
