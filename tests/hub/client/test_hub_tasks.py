"""Tasks, their attachments and admin operations, with the client."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import sqlite3
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.hub.client.conftest import RunWithHub
from tests.hub.client.connection_breaking_proxy import ConnectionBreakingProxy

from onceward import errors
from onceward.hub import tasks
from onceward.hub.client import BlockingHub, Hub, TaskAttachment
from onceward.hub.db.engine import open_database

CONTENT = b'{"a": 1}\n'


class Pipe(io.RawIOBase):
    """Bytes that can be read once."""

    def __init__(self, content: bytes) -> None:
        super().__init__()
        self._content = io.BytesIO(content)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return self._content.readinto(buffer)


class Stdin(io.BytesIO):
    """Standard input from a file, with the name that Python gives it."""

    name = "<stdin>"


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


async def downloaded_bytes(hub: Hub, attachment: TaskAttachment) -> bytes:
    file = io.BytesIO()
    done = await hub.download(attachment.id, file)
    assert (done.size_bytes, done.sha256) == (attachment.size_bytes, attachment.sha256)
    return file.getvalue()


def test_tasks_are_made_listed_and_deleted(url: str, run_with_hub: RunWithHub) -> None:
    async def use(hub: Hub) -> None:
        made = await hub.create_task("Paint it", spec_id="docs/paint.md")
        named = await hub.create_task("Named", task_id=f"{made.id}-named")
        with pytest.raises(errors.AlreadyThere):
            await hub.create_task("Again", task_id=named.id)

        assert await hub.task(made.id) == made
        assert [named, made] == (await hub.tasks())[:2]
        await hub.delete_task(made.id)
        with pytest.raises(errors.NotFound):
            await hub.task(made.id)
        with pytest.raises(errors.NotFound):
            await hub.delete_task(made.id)

    run_with_hub(url, use)


def test_more_tasks_than_a_page_holds_are_listed_page_by_page(
    url: str, run_with_hub: RunWithHub, data_dir: Path
) -> None:
    with contextlib.closing(open_database(f"sqlite:///{data_dir}/hub.db")) as database, database.write() as tx:
        made = [tasks.create_task(tx, "One of many").id for _ in range(1001)]
    newest = made[::-1]

    async def use(hub: Hub) -> None:
        for limit in (1, 50, 500, 501, 1000, 1001):
            assert [task.id for task in await hub.tasks(limit=limit)] == newest[:limit], limit
        everything = await hub.tasks(limit=None)
        assert [task.id for task in everything[:1001]] == newest
        assert len(everything) == len({task.id for task in everything}) == len(await hub.tasks(limit=10_000))
        with pytest.raises(errors.InvalidInput):
            await hub.tasks(limit=0)

    run_with_hub(url, use)


def test_all_fields_of_an_uploaded_file_come_back(url: str, run_with_hub: RunWithHub, tmp_path: Path) -> None:
    file = tmp_path / 'Ünï "quoted" (1).json'
    file.write_bytes(CONTENT)

    async def use(hub: Hub) -> None:
        task = await hub.create_task("Files")
        reported: list[tuple[int, int]] = []
        made = await hub.attach_file(
            task.id, file, "artifact", title="Ä title\r\nof two lines", media_type="application/json", meta={"ü": [1]},
            labels=["B", "a", "b"], expires_at="2999-01-01", progress=lambda done, total: reported.append((done, total)),
        )  # fmt: skip

        assert (made.kind, made.source_type, made.task_id) == ("artifact", "managed_blob", task.id)
        assert (made.filename, made.title) == (file.name, "Ä title\r\nof two lines")
        assert (made.media_type, made.media_type_source) == ("application/json", "declared")
        assert (made.labels, made.meta["ü"]) == (("a", "b"), [1])
        assert made.expires_at == datetime(2999, 1, 1, 23, 59, 59, 999999, UTC)
        assert (made.sha256, made.size_bytes) == (hashlib.sha256(CONTENT).hexdigest(), len(CONTENT))
        assert not made.expired
        assert reported == [(len(CONTENT), len(CONTENT))]
        assert await hub.attachment(made.id) == made
        assert await hub.task_attachments(task.id) == [made]
        assert await downloaded_bytes(hub, made) == CONTENT

    run_with_hub(url, use)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\r\n",
        b"--onceward-boundary-0\r\n--onceward-boundary-1--\r\n",
        b"x" * (256 * 1024 - 9) + b"\r\n--onceward-boundary-0--\r\n",
        os.urandom(700_001),
    ],
    ids=["empty", "line-end", "boundaries", "boundary-across-pieces", "random"],
)
@pytest.mark.parametrize("how", ["path", "file", "middle", "stdin", "pipe"])
def test_a_download_has_the_same_bytes(
    content: bytes, how: str, url: str, run_with_hub: RunWithHub, tmp_path: Path
) -> None:
    path = tmp_path / "content.bin"
    path.write_bytes(content)
    middle = io.BytesIO(b"before" + content)
    middle.seek(len(b"before"))

    async def use(hub: Hub) -> None:
        task = await hub.create_task("Bytes")
        with path.open("rb") as file:
            sources = {
                "path": str(path),
                "file": file,
                "middle": middle,
                "stdin": Stdin(content),
                "pipe": Pipe(content),
            }
            made = await hub.attach_file(task.id, sources[how], "other")  # type: ignore[arg-type]  # a file by what it does

        assert made.filename == ("content.bin" if how in {"path", "file"} else None)
        assert await downloaded_bytes(hub, made) == content

    run_with_hub(url, use)


def test_links_are_attached_and_have_no_content(url: str, run_with_hub: RunWithHub) -> None:
    async def use(hub: Hub) -> None:
        task = await hub.create_task("Links")
        page = await hub.attach_link(task.id, "spec", external_url="https://example.com/a.pdf", labels=("x",))
        path = await hub.attach_link(task.id, "diagram", repo_path="docs/a.svg", title="A", meta={"k": 1})

        assert (page.source_type, page.external_url, page.labels) == (
            "external_url",
            "https://example.com/a.pdf",
            ("x",),
        )
        assert (path.source_type, path.repo_path, path.meta) == ("repo_path", "docs/a.svg", {"k": 1})
        assert await hub.task_attachments(task.id) == [path, page]
        assert await hub.task_attachments(task.id, limit=1) == [path]
        with pytest.raises(errors.InvalidInput, match="link"):
            await hub.download(page.id, io.BytesIO())
        with pytest.raises(errors.InvalidInput):
            await hub.attach_link(task.id, "spec")

    run_with_hub(url, use)


def test_labels_are_replaced_and_attachments_removed(url: str, run_with_hub: RunWithHub) -> None:
    async def use(hub: Hub) -> None:
        task = await hub.create_task("Labels")
        made = await hub.attach_file(task.id, io.BytesIO(b"x"), "other", labels=["old"])
        changed = await hub.replace_labels(made.id, iter(["New", "b"]))
        await hub.remove_attachment(made.id)

        assert changed.labels == ("b", "new")
        assert await hub.task_attachments(task.id) == []
        for asked in (hub.attachment(made.id), hub.remove_attachment(made.id), hub.download(made.id, io.BytesIO())):
            with pytest.raises(errors.NotFound):
                await asked

    run_with_hub(url, use)


def test_an_expired_attachment_is_listed_and_cannot_be_downloaded(
    url: str, run_with_hub: RunWithHub, data_dir: Path
) -> None:
    async def use(hub: Hub) -> None:
        task = await hub.create_task("Expired")
        made = await hub.attach_file(task.id, io.BytesIO(b"x"), "other", expires_at="2999-01-01")
        with contextlib.closing(sqlite3.connect(data_dir / "hub.db")) as database, database:
            database.execute("UPDATE attachments SET expires_at = created_at WHERE id = ?", (made.id,))
        (listed,) = await hub.task_attachments(task.id)

        assert (made.expired, listed.expired) == (False, True)
        with pytest.raises(errors.Expired):
            await hub.download(made.id, io.BytesIO())

    run_with_hub(url, use)


def test_an_upload_with_the_same_key_happens_once(url: str, run_with_hub: RunWithHub, tmp_path: Path) -> None:
    """Also from another client and another file with the same bytes."""
    path = tmp_path / "a.bin"
    path.write_bytes(os.urandom(300_000))

    async def use(hub: Hub) -> TaskAttachment:
        with path.open("rb") as file:
            return await hub.attach_file(task.id, file, "other", idempotency_key=f"{task.id}-1")

    with BlockingHub(url) as blocking:
        task = blocking.create_task("Once")
        first = blocking.attach_file(task.id, path, "other", idempotency_key=f"{task.id}-1")
        assert run_with_hub(url, use) == first
        assert blocking.task_attachments(task.id) == [first]
        with pytest.raises(errors.KeyReused):
            blocking.attach_file(task.id, io.BytesIO(b"other"), "other", idempotency_key=f"{task.id}-1")


def test_a_cut_upload_is_sent_again_from_its_beginning(url: str, run_with_hub: RunWithHub) -> None:
    """Far more than a retrying transport would buffer in memory."""
    content = os.urandom(12 * 1024 * 1024)
    reported: list[int] = []

    async def use(hub: Hub) -> None:
        task = await hub.create_task("Cut")
        async with ConnectionBreakingProxy(url) as proxy, Hub(proxy.url) as far:

            def progress(done: int, _total: int) -> None:
                reported.append(done)
                if done > len(content) // 2 and proxy.connections == 1:
                    for one in proxy.live:
                        one.cancel()

            made = await far.attach_file(task.id, io.BytesIO(content), "other", progress=progress)

            assert proxy.connections == 2
        assert await hub.task_attachments(task.id) == [made]
        assert made.sha256 == hashlib.sha256(content).hexdigest()
        assert reported[-1] == len(content)
        assert sorted(reported) != reported

    run_with_hub(url, use)


def test_a_lost_response_to_an_upload_is_requested_again(url: str, run_with_hub: RunWithHub) -> None:
    async def use(hub: Hub) -> None:
        task = await hub.create_task("Lost")
        async with ConnectionBreakingProxy(url) as proxy, Hub(proxy.url) as far:
            proxy.lose_answers = 2
            made = await far.attach_file(task.id, io.BytesIO(b"x" * 100_000), "other")

            assert proxy.connections == 3
        assert await hub.task_attachments(task.id) == [made]

    run_with_hub(url, use)


def test_a_download_that_is_cut_repeatedly_is_resumed(url: str, run_with_hub: RunWithHub, tmp_path: Path) -> None:
    content = os.urandom(6 * 1024 * 1024)
    target = tmp_path / "got.bin"

    async def use(hub: Hub) -> None:
        task = await hub.create_task("Resumed")
        made = await hub.attach_file(task.id, io.BytesIO(content), "other")
        async with ConnectionBreakingProxy(url) as proxy, Hub(proxy.url) as far:
            proxy.answer_bytes_max = 2 * 1024 * 1024
            done = await far.download(made.id, target)

            assert proxy.connections > 2
        assert done.sha256 == made.sha256
        assert target.read_bytes() == content

    run_with_hub(url, use)


def test_a_failed_download_leaves_no_file(url: str, run_with_hub: RunWithHub, tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.write_bytes(b"mine")

    async def use(hub: Hub) -> None:
        task = await hub.create_task("Nothing")
        made = await hub.attach_file(task.id, io.BytesIO(b"theirs"), "other")
        with pytest.raises(errors.NotFound):
            await hub.download("at-none", tmp_path / "none")
        with pytest.raises(errors.AlreadyThere):
            await hub.download(made.id, there)

        assert names_in(tmp_path) == ["there"]
        assert there.read_bytes() == b"mine"
        await hub.download(made.id, there, overwrite=True)
        assert there.read_bytes() == b"theirs"

    run_with_hub(url, use)


def test_a_refused_upload_says_why(url: str, run_with_hub: RunWithHub) -> None:
    png = b"\x89PNG\r\n\x1a\n" + bytes(64)

    async def use(hub: Hub) -> None:
        task = await hub.create_task("Refused")
        with pytest.raises(errors.InvalidInput) as raised:
            await hub.attach_file(task.id, io.BytesIO(png), "other", media_type="application/pdf")
        with pytest.raises(errors.NotFound):
            await hub.attach_file("no-task", io.BytesIO(b"x"), "other")
        with pytest.raises(errors.InvalidInput):
            await hub.attach_file(task.id, io.BytesIO(b"x"), "picture")
        with pytest.raises(errors.TooLarge):
            await hub.attach_file(task.id, Zeros(200 * 1024 * 1024), "other")
        found = await hub.attach_file(
            task.id, io.BytesIO(png), "other", media_type="application/pdf", reject_media_type_mismatch=False
        )

        assert [name for name, _ in raised.value.fields] == ["media_type"]
        assert found.media_type == "image/png"
        assert await hub.task_attachments(task.id) == [found]

    run_with_hub(url, use)


class Zeros(io.BytesIO):
    """Many bytes that need no memory."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self._size, self._at = size, 0

    def tell(self) -> int:
        return self._at

    def seek(self, to: int, whence: int = 0) -> int:
        assert whence == 0
        self._at = to
        return to

    def read(self, size: int | None = -1) -> bytes:
        count = min(size or 0, self._size - self._at)
        self._at += count
        return bytes(count)


def test_an_admin_can_run_gc_fsck_and_the_backfill(url: str, run_with_hub: RunWithHub, data_dir: Path) -> None:
    async def use(hub: Hub) -> None:
        task = await hub.create_task("Admin", spec_id="https://example.com/spec")
        made = await hub.attach_file(task.id, io.BytesIO(os.urandom(1000)), "other")
        kept = await hub.attach_file(task.id, io.BytesIO(os.urandom(1000)), "other")
        await hub.remove_attachment(made.id)
        counted = await hub.gc_blobs(grace_seconds=0)
        collected = await hub.gc_blobs(dry_run=False, grace_seconds=0, batch_size=1)
        again = await hub.gc_blobs(grace_seconds=0)

        assert counted.dry_run
        assert counted.candidate_count == collected.deleted_count > 0
        assert counted.reclaimed_bytes == collected.reclaimed_bytes >= 1000
        assert (again.candidate_count, collected.failed_count) == (0, 0)

        assert kept.sha256 is not None
        assert await hub.fsck() == []
        blob = data_dir / "blobs" / "sha256" / kept.sha256[:2] / kept.sha256[2:4] / kept.sha256
        blob.chmod(0o600)
        blob.write_bytes(bytes(1000))
        (damage,) = await hub.fsck()

        assert (damage.problem, damage.attachments, damage.quarantined) == ("wrong-content", (kept.id,), True)
        assert not blob.exists()
        await hub.remove_attachment(kept.id)
        await hub.gc_blobs(dry_run=False, grace_seconds=0)

        added = await hub.backfill_spec_attachments()
        rerun = await hub.backfill_spec_attachments()

        assert added.added_count >= 1
        assert (rerun.added_count, rerun.failed) == (0, ())
        assert [one.external_url for one in await hub.task_attachments(task.id)] == ["https://example.com/spec"]

    run_with_hub(url, use)


@pytest.mark.parametrize("name", ["", ".", "..", "x/content", "%", "a b", "ü", "\ud800", "?limit=1"])
def test_an_odd_id_is_not_found(name: str, url: str, run_with_hub: RunWithHub) -> None:
    async def use(hub: Hub) -> None:
        for asked in (hub.task(name), hub.attachment(name), hub.remove_attachment(name), hub.delete_task(name)):
            with pytest.raises(errors.NotFound):
                await asked

    run_with_hub(url, use)
