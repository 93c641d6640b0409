"""Several processes with one place for rows and bytes, what is left of those that are killed, and a full disk."""

from __future__ import annotations

import dataclasses
import resource
import subprocess
import sys

import pytest
from tests.hub.process import ROOT, environment
from tests.tasks.vault import SOUND, Vault
from tests.tasks.worker import POINTS, content_of, left_over

from onceward.errors import StoreUnavailable

SIZE = 50_000_000


def run(vault: Vault, order: str, *arguments: str) -> None:
    where = (vault.database_url, vault.blobs_url, str(vault.spools))
    command = [sys.executable, "-m", "tests.tasks.worker", order, *where, *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment(), stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_who_is_killed_at_any_point_leaves_no_row_without_bytes_and_garbage_is_swept(vault: Vault) -> None:
    run(vault, "die")

    assert vault.audit().broken == []
    ((size,),) = vault.rows("SELECT size_bytes FROM attachments JOIN blobs ON blobs.id = blob_id")
    assert size == len(content_of("committed"))
    assert left_over(vault) != []
    lying = sum(
        file.stat().st_size for file in left_over(vault) if file.suffix == ".part" and file.stat().st_nlink == 1
    )
    counted, collected = vault.collect(dry_run=True), vault.collect()
    # A dry run counts what a run then removes, the files of killed uploads among it.
    assert dataclasses.replace(counted, dry_run=False, deleted_count=collected.deleted_count) == collected
    assert collected.deleted_count == collected.candidate_count
    assert collected.reclaimed_bytes > lying > 0
    assert vault.audit() == SOUND
    assert len(vault.keys()) == vault.count("blobs") == vault.count("attachments") == 1
    assert left_over(vault) == []
    # Whatever was left, the same uploads then work.
    for point in POINTS:
        vault.attach(content_of(point))
    assert vault.count("blobs") == len(POINTS)
    assert vault.audit() == SOUND


def test_after_each_of_these_kills_a_later_run_leaves_no_row_without_bytes_and_no_garbage(vault: Vault) -> None:
    run(vault, "die-and-collect")

    ((size,),) = vault.rows("SELECT size_bytes FROM attachments JOIN blobs ON blobs.id = blob_id")
    assert size == len(content_of("committed"))


def test_eight_processes_upload_the_same_bytes_at_once(vault: Vault) -> None:
    run(vault, "same", str(SIZE), "8")

    assert (vault.count("blobs"), vault.count("attachments"), len(vault.keys())) == (1, 8, 1)
    assert len(vault.events("task.attachment_added")) == 8
    assert vault.audit() == SOUND
    assert left_over(vault) == []


def test_a_full_disk_is_told_leaves_nothing_and_is_forgotten_when_there_is_room(vault: Vault) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, limits[1]))
    try:
        with pytest.raises(StoreUnavailable):
            vault.attach(b"x" * 2_000_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    assert (vault.count("attachments"), vault.count("blobs"), vault.keys(), left_over(vault)) == (0, 0, set(), [])
    assert len(vault.content(vault.attach(b"x" * 2_000_000).id)) == 2_000_000
