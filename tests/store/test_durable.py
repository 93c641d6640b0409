"""Durable writes on macOS: the disk's own cache is flushed too."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from onceward.hub.blobs.open import open_blobs
from onceward.store import durable
from onceward.store.sqlite import SqliteStore
from onceward.testing.caller import begin

# As macOS has it.
F_FULLFSYNC = 51


class Mac:
    """The part of macOS's fcntl that Linux does not have."""

    F_FULLFSYNC = F_FULLFSYNC

    def __init__(self, *, works: bool = True) -> None:
        self._works = works
        self.synced: list[int] = []

    def fcntl(self, descriptor: int, command: int) -> None:
        assert command == F_FULLFSYNC
        if not self._works:
            raise OSError(45, "Operation not supported")
        self.synced.append(os.fstat(descriptor).st_ino)


@pytest.fixture
def mac(monkeypatch: pytest.MonkeyPatch) -> Mac:
    mac = Mac()
    monkeypatch.setattr(durable, "fcntl", mac)
    return mac


def test_the_bytes_of_a_blob_and_its_folder_are_synced_fully(mac: Mac, tmp_path: Path) -> None:
    blobs = open_blobs(f"file://{tmp_path}/blobs")
    with blobs.temp_file() as temp_file:
        temp_file.write(b"bytes")
        temp_file.finish()
        with blobs.lock():
            key = blobs.put(temp_file, "bl-00000001")

    (file,) = [path for path in (tmp_path / "blobs" / "sha256").rglob("*") if path.is_file()]
    assert {file.stat().st_ino, file.parent.stat().st_ino} <= set(mac.synced), key


def test_a_disk_without_a_full_sync_is_synced_normally(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(durable, "fcntl", Mac(works=False))
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    with (tmp_path / "file").open("wb") as file:
        durable.sync(file.fileno())

        assert synced == [file.fileno()]


def test_the_ledgers_file_is_synced_fully(tmp_path: Path) -> None:
    with closing(SqliteStore(tmp_path / "ledger.db")) as store:
        store.commit([begin()])
        assert isinstance(store._db, sqlite3.Connection)

        assert store._db.execute("PRAGMA fullfsync").fetchone() == (1,)
        assert store._db.execute("PRAGMA checkpoint_fullfsync").fetchone() == (1,)
