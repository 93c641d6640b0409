"""Several processes on one blob store, and the leftovers of killed ones."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.hub.blobs import blob_process
from tests.hub.blobs.blob_io import put_bytes, read_all, stored_sizes

from onceward.hub.blobs import BlobStore
from onceward.hub.blobs.folder import FolderBlobs

SIZE = 1_500_000


@contextmanager
def process(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, blob_process.__file__, *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        try:
            yield child
        finally:
            child.kill()


def run(*arguments: str) -> list[str]:
    command = [sys.executable, blob_process.__file__, *arguments]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.split()


def line_of(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    return child.stdout.readline().strip()


def test_eight_processes_put_the_same_bytes_concurrently(blobs: BlobStore, blobs_url: str, tmp_path: Path) -> None:
    lines = run("race", blobs_url, str(tmp_path / "spool"), str(SIZE), "8")

    assert len(lines) == 8
    assert len(set(lines)) == (1 if blobs.backend == "local_cas" else 8)
    assert stored_sizes(blobs) == dict.fromkeys(lines, SIZE)
    assert {read_all(blobs, key) for key in set(lines)} == {blob_process.content(SIZE)[:SIZE]}
    assert blobs.sweep_temporary(0).removed_count == 0


def test_a_put_killed_after_any_step_leaves_a_complete_blob_or_nothing(tmp_path: Path) -> None:
    steps = run("die", str(tmp_path), str(SIZE))
    expected = blob_process.content(SIZE)[:SIZE]

    assert steps == ["write", "fchmod", "fsync", "mkdir", "fsync", "mkdir", "fsync", "link", "fsync", "unlink", "done"]
    for number, step in enumerate(steps, start=1):
        blobs = FolderBlobs(tmp_path / str(number))
        found = list(blobs.keys())
        assert len(found) == (number > steps.index("link")), step
        assert all(read_all(blobs, blob.key) == expected for blob in found), step
        assert blobs.sweep_temporary(3600).removed_count == 0
        assert blobs.sweep_temporary(0).removed_count == (step not in {"unlink", "done"}), step
        assert list((tmp_path / str(number) / "tmp").iterdir()) == []
        # Afterwards, the same upload works.
        assert read_all(blobs, put_bytes(blobs, expected)) == expected


def test_an_owner_killed_after_any_step_is_the_owner_or_leaves_the_place_free(tmp_path: Path) -> None:
    steps = run("die-owning", str(tmp_path), "first")

    assert steps == ["write", "fchmod", "fsync", "link", "rename", "fsync", "unlink", "done"]
    for number, step in enumerate(steps, start=1):
        blobs = FolderBlobs(tmp_path / str(number))
        owner = "first" if number > steps.index("rename") else "second"
        assert blobs.owner("second") == owner, step
        assert blobs.owner("third") == owner, step
        blobs.sweep_temporary(0)
        assert list((tmp_path / str(number) / "tmp").iterdir()) == [], step


def test_the_lock_excludes_other_processes_and_ends_with_them(in_folder: FolderBlobs, folder: Path) -> None:
    with process("hold", folder.as_uri()) as child:
        assert line_of(child) == "held"
        with (folder / "lock").open("rb") as lock, pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        child.kill()
        child.wait()

        with in_folder.lock():
            assert (folder / "lock").is_file()
