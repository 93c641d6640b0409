"""Discarded blobs stay in the trash of a folder for a while, and are reported if they cannot be removed."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from tests.hub.blobs.blob_io import failing, path_of, put_bytes

from onceward.hub.blobs import Emptied
from onceward.hub.blobs.folder import FolderBlobs


def test_a_discarded_blob_stays_in_the_trash_for_a_while(in_folder: FolderBlobs, folder: Path) -> None:
    key = put_bytes(in_folder, b"thrown away")
    in_folder.discard(key)

    assert [path.read_bytes() for path in (folder / "trash").iterdir()] == [b"thrown away"]
    assert in_folder.empty_trash(3600) == Emptied()
    assert in_folder.empty_trash(0) == Emptied(removed_count=1)
    assert list((folder / "trash").iterdir()) == []


def test_an_entry_that_cannot_be_removed_from_the_trash_is_reported_and_the_others_are_removed(
    in_folder: FolderBlobs, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before, planted, after = (put_bytes(in_folder, content) for content in (b"before", b"planted", b"after"))
    in_folder.discard(before)
    path_of(folder, b"planted").unlink()
    path_of(folder, b"planted").mkdir()
    in_folder.discard(planted)
    in_folder.discard(after)

    assert in_folder.empty_trash(0) == Emptied(removed_count=2, failed_count=1)
    (left,) = (folder / "trash").iterdir()
    assert left.is_dir()
    assert in_folder.empty_trash(3600) == Emptied()
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("onceward.blobs", "WARNING")
    assert (record.msg, vars(record)["failed_count"]) == ("trash_removal_failed", 1)
    assert vars(record)["first_failure"] == f"{left}: {os.strerror(errno.EISDIR)}"


def test_entries_left_in_the_trash_are_logged_once_per_run(
    in_folder: FolderBlobs, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        in_folder.discard(put_bytes(in_folder, b"%d" % number))
    monkeypatch.setattr(os, "unlink", failing(errno.EROFS))

    assert [in_folder.empty_trash(0) for _ in range(2)] == [Emptied(failed_count=3)] * 2
    assert [(record.msg, vars(record)["failed_count"]) for record in caplog.records] == [
        ("trash_removal_failed", 3)
    ] * 2


def test_an_entry_that_another_process_removed_from_the_trash_is_not_a_failure(
    in_folder: FolderBlobs, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_folder.discard(put_bytes(in_folder, b"raced"))
    monkeypatch.setattr(os, "unlink", failing(errno.ENOENT))

    assert in_folder.empty_trash(0) == Emptied()
    assert caplog.records == []
