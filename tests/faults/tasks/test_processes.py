"""Several processes on one database and one blob store: leftovers of killed ones, and a full disk."""

from __future__ import annotations

import dataclasses
import resource
import subprocess

import pytest
from tests.faults.tasks.attachment_process import POINTS, content_of, left_over
from tests.forked_python import forked_python
from tests.hub.hub_process import ROOT, environment
from tests.hub.tasks.attachment_store import SOUND, AttachmentStore

from onceward.errors import StoreUnavailable

SIZE = 50_000_000


def run(attachment_store: AttachmentStore, order: str, *arguments: str) -> None:
    where = (attachment_store.database_url, attachment_store.blobs_url, str(attachment_store.temp_folder))
    python = forked_python("onceward.hub.tasks", "onceward.hub.db.migrate", "onceward.hub.blobs.open")
    command = [python, "-m", "tests.faults.tasks.attachment_process", order, *where, *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment(), stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_process_killed_at_any_point_leaves_no_row_without_bytes_and_no_lasting_garbage(
    attachment_store: AttachmentStore,
) -> None:
    run(attachment_store, "die")

    assert attachment_store.audit().broken == []
    ((size,),) = attachment_store.rows("SELECT size_bytes FROM attachments JOIN blobs ON blobs.id = blob_id")
    assert size == len(content_of("committed"))
    assert left_over(attachment_store) != []
    lying = sum(
        file.stat().st_size
        for file in left_over(attachment_store)
        if file.suffix == ".part" and file.stat().st_nlink == 1
    )
    counted, collected = attachment_store.collect(dry_run=True), attachment_store.collect()
    # A dry run counts what a run then removes, the files of killed uploads among it.
    assert dataclasses.replace(counted, dry_run=False, deleted_count=collected.deleted_count) == collected
    assert collected.deleted_count == collected.candidate_count
    assert collected.reclaimed_bytes > lying > 0
    assert attachment_store.audit() == SOUND
    assert len(attachment_store.keys()) == attachment_store.count("blobs") == attachment_store.count("attachments") == 1
    assert left_over(attachment_store) == []
    # Afterwards, the same uploads work.
    for point in POINTS:
        attachment_store.attach(content_of(point))
    assert attachment_store.count("blobs") == len(POINTS)
    assert attachment_store.audit() == SOUND


def test_after_each_of_these_kills_a_later_run_leaves_no_row_without_bytes_and_no_garbage(
    attachment_store: AttachmentStore,
) -> None:
    run(attachment_store, "die-and-collect")

    ((size,),) = attachment_store.rows("SELECT size_bytes FROM attachments JOIN blobs ON blobs.id = blob_id")
    assert size == len(content_of("committed"))


def test_eight_processes_upload_the_same_bytes_concurrently(attachment_store: AttachmentStore) -> None:
    run(attachment_store, "same", str(SIZE), "8")

    assert (attachment_store.count("blobs"), attachment_store.count("attachments"), len(attachment_store.keys())) == (
        1,
        8,
        1,
    )
    assert len(attachment_store.events("task.attachment_added")) == 8
    assert attachment_store.audit() == SOUND
    assert left_over(attachment_store) == []


def test_a_full_disk_is_reported_leaves_nothing_and_is_forgotten_when_there_is_room(
    attachment_store: AttachmentStore,
) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, limits[1]))
    try:
        with pytest.raises(StoreUnavailable):
            attachment_store.attach(b"x" * 2_000_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    assert (
        attachment_store.count("attachments"),
        attachment_store.count("blobs"),
        attachment_store.keys(),
        left_over(attachment_store),
    ) == (0, 0, set(), [])
    assert len(attachment_store.content(attachment_store.attach(b"x" * 2_000_000).id)) == 2_000_000
