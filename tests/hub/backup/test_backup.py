"""Backups of a hub under load: nothing that was committed is missing, and every row has its bytes."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import io
import json
import os
import resource
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from tests.hub.backup.backup_load import Load
from tests.hub.backup.hub_data import attach_file
from tests.hub.hub_process import environment, running_hub
from tests.waiting import until

from onceward.errors import AlreadyThere, InvalidConfig, InvalidInput, NotFound, StoreUnavailable
from onceward.hub.backup.backup import back_up
from onceward.hub.backup.restore import restore
from onceward.hub.client import BlockingHub
from onceward.hub.config.config import Config, HubSettings


def config_of(folder: Path, database: str = "", ledger: str = "", blobs: str = "") -> Config:
    return Config(HubSettings(data_dir=str(folder), database=database, ledger=ledger, blobs=blobs))


def rows(file: Path, table: str) -> list[tuple[object, ...]]:
    with contextlib.closing(sqlite3.connect(file)) as database:
        return database.execute(f"SELECT * FROM {table} ORDER BY 1").fetchall()  # noqa: S608  # our own names


def column(file: Path, statement: str) -> set[object]:
    with contextlib.closing(sqlite3.connect(file)) as database:
        return {row[0] for row in database.execute(statement)}


def test_a_backup_under_load_is_complete_and_a_hub_starts_on_it(tmp_path: Path) -> None:
    data, copy, new = tmp_path / "data", tmp_path / "copy", tmp_path / "new"
    with running_hub(data_dir=data) as hub:
        load = Load(hub.url)
        with load.running():
            until(lambda: (len(load.attachments) > 10 and len(load.turns) > 5) or load.errors, "nothing is written")
            tasks, attachments, turns = list(load.tasks), dict(load.attachments), list(load.turns)
            done = subprocess.run(
                [sys.executable, "-m", "onceward", "backup", str(copy), "--data-dir", str(data), "--json"],
                capture_output=True,
                env=environment(),
                cwd=tmp_path,
                check=False,
            )
        assert load.errors == []
    assert (done.returncode, done.stderr) == (0, b"")

    restore(copy, config_of(new))

    manifest = json.loads((copy / "backup.json").read_bytes())
    for record in (manifest["database"], manifest["ledger"]):
        for table, count in record["tables"].items():
            if table not in ("event_log", "platform_idempotency_meta"):  # the next test
                assert rows(new / record["name"], table) == rows(copy / record["name"], table)
            assert len(rows(new / record["name"], table)) == count
    # Nothing that was confirmed before the backup is missing, and events are the same as in the hub.
    database = new / "hub.db"
    assert set(tasks) <= column(database, "SELECT id FROM tasks")
    assert attachments.keys() <= column(database, "SELECT id FROM attachments")
    assert set(turns) <= column(database, "SELECT id FROM turns")
    events = rows(database, "events")
    assert events == rows(data / "hub.db", "events")[: len(events)]
    # Every row has its bytes, and all bytes have a row.
    keys = column(database, "SELECT blob_key FROM blobs")
    found = {str(file.relative_to(new / "blobs")): file for file in (new / "blobs").rglob("*") if file.is_file()}
    assert keys == found.keys()
    assert all(hashlib.sha256(file.read_bytes()).hexdigest() == file.name for file in found.values())
    # A request that the ledger calls completed has its rows.
    with contextlib.closing(sqlite3.connect(new / "ledger.db")) as ledger:
        bodies = ledger.execute(
            "SELECT response_body FROM platform_idempotency_keys WHERE status = 'completed' AND key LIKE 'task-%'"
        ).fetchall()
    completed = {json.loads(body)["id"] for (body,) in bodies}
    assert len(completed) >= len(tasks)
    assert completed <= column(database, "SELECT id FROM tasks")
    with running_hub(data_dir=new) as restored, BlockingHub(restored.url) as client:
        for attachment, content in attachments.items():
            into = io.BytesIO()
            client.download(attachment, into)
            assert into.getvalue() == content
        assert client.fsck(quarantine=False) == []


def test_a_restored_log_is_another_one_and_new_claims_have_greater_versions(data: Path, tmp_path: Path) -> None:
    back_up(config_of(data), tmp_path / "copy")

    restore(tmp_path / "copy", config_of(tmp_path / "new"))

    epochs = [column(folder / "hub.db", "SELECT log_epoch FROM event_log") for folder in (data, tmp_path / "new")]
    assert epochs[0] != epochs[1]
    newest = max(map(int, map(str, column(data / "ledger.db", "SELECT version FROM platform_idempotency_keys"))))
    (floor,) = column(tmp_path / "new" / "ledger.db", "SELECT version_floor FROM platform_idempotency_meta")
    assert int(str(floor)) >= newest + 1_000_000
    assert {oct(file.stat().st_mode & 0o777) for file in (tmp_path / "new").rglob("*")} == {"0o600", "0o700"}


def test_a_backup_that_was_killed_is_refused(data: Path, tmp_path: Path) -> None:
    stall = (
        "import sys, time; from pathlib import Path; from onceward.hub.backup import backup as b\n"
        "from onceward.hub.config.config import Config, HubSettings\n"
        "b.back_up(Config(HubSettings(data_dir=sys.argv[1])), Path(sys.argv[2]), lambda *_: time.sleep(0.2))\n"
    )
    copy = tmp_path / "copy"
    with subprocess.Popen([sys.executable, "-c", stall, str(data), str(copy)], env=environment()) as process:
        until(lambda: (copy / "ledger.db").exists() or any(copy.glob("blobs/sha256/*")), "no copy begins")
        os.kill(process.pid, signal.SIGKILL)

    with pytest.raises(InvalidInput, match="not a complete backup"):
        restore(copy, config_of(tmp_path / "new"))
    assert not (tmp_path / "new").exists()
    with pytest.raises(AlreadyThere, match="not empty"):
        back_up(config_of(data), copy)


@pytest.mark.parametrize("limit", [50_000, 150_000])
def test_a_full_disk_ends_the_backup_and_leaves_nothing(data: Path, tmp_path: Path, limit: int) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limits[1]))
    try:
        with pytest.raises(StoreUnavailable, match="the backup failed"):
            back_up(config_of(data), tmp_path / "copy")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    assert not (tmp_path / "copy").exists()


def test_a_blob_that_is_damaged_already_is_reported_and_left_out(data: Path, tmp_path: Path) -> None:
    damaged, *_ = sorted(file for file in (data / "blobs" / "sha256").rglob("*") if file.is_file())
    damaged.write_bytes(b"something else")

    manifest = back_up(config_of(data), tmp_path / "copy")

    assert manifest.damaged == (str(damaged.relative_to(data / "blobs")),)
    assert manifest.blobs.count == 2
    assert restore(tmp_path / "copy", config_of(tmp_path / "new")) == manifest


def test_a_blob_that_gc_deletes_during_the_copy_is_in_the_backup_only_if_its_row_is(data: Path, tmp_path: Path) -> None:
    """The row is deleted after the first blob was copied, and before the rows are fixed."""
    removed = 0

    def remove(_done: int, _total: int | None) -> None:
        nonlocal removed
        if not removed:
            with contextlib.closing(sqlite3.connect(data / "hub.db")) as database, database:
                database.execute("DELETE FROM attachments")
                removed = database.execute("DELETE FROM blobs").rowcount

    manifest = back_up(config_of(data), tmp_path / "copy", remove)

    assert (removed, manifest.blobs.count, manifest.damaged) == (3, 0, ())
    assert not [file for file in (tmp_path / "copy" / "blobs").rglob("*") if file.is_file()]


def test_gc_is_kept_out_while_the_last_blobs_are_copied_and_not_before(data: Path, tmp_path: Path) -> None:
    """The file that is attached after the first blob was copied is one of the last."""
    seen: list[tuple[int, bool]] = []

    def is_locked() -> bool:
        lock = os.open(data / "blobs" / "lock", os.O_RDWR)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(lock)
        return False

    def attach(_done: int, _total: int | None) -> None:
        copied = len([file for file in (tmp_path / "copy" / "blobs").rglob("*") if file.is_file()])
        if not seen:
            attach_file(config_of(data), b"late")
        seen.append((copied, is_locked()))

    manifest = back_up(config_of(data), tmp_path / "copy", attach)

    assert manifest.blobs.count == 4
    assert {(copied, locked) for copied, locked in seen if copied <= 3} == {(1, False), (2, False), (3, False)}
    first_of_four = next(locked for copied, locked in seen if copied == 4)
    assert first_of_four
    assert not seen[-1][1], "not while the files are copied"


def test_only_a_hub_on_sqlite_and_a_folder_is_copied(data: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    for settings in ({"database": "postgresql://h/d"}, {"ledger": "redis://h"}, {"blobs": "s3://bucket"}):
        with pytest.raises(InvalidConfig, match="SQLite files and a folder"):
            back_up(config_of(data, **settings), copy)
    with pytest.raises(NotFound, match="does not exist"):
        back_up(config_of(tmp_path / "elsewhere"), copy)
    assert not copy.exists()
