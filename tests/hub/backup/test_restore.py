"""Restore: only a complete and unchanged backup, only into an empty folder, and never a part of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from onceward.errors import AlreadyThere, InvalidConfig, InvalidInput
from onceward.hub.backup.backup import back_up
from onceward.hub.backup.restore import restore
from onceward.hub.config import data_folder
from onceward.hub.config.config import Config, HubSettings
from onceward.hub.doctor.check_result import Level
from onceward.hub.doctor.machine import blobs_checks


def blob(copy: Path) -> Path:
    return next(file for file in (copy / "blobs").rglob("*") if file.is_file())


def _change(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(bytes(data))


def _renumber(copy: Path, changes: dict[str, object]) -> None:
    file = copy / "backup.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a bit of the database": (lambda copy: _change(copy / "hub.db"), "hub.db in the backup is damaged"),
    "no ledger": (lambda copy: (copy / "ledger.db").unlink(), "has no file ledger.db"),
    "a bit of a blob": (lambda copy: _change(blob(copy)), "is damaged"),
    "no blob": (lambda copy: blob(copy).unlink(), "has 2 blobs, and its manifest names 3"),
    "another blob": (lambda copy: (copy / "blobs" / "x").write_bytes(b"x"), "has 4 blobs"),
    "no manifest": (lambda copy: (copy / "backup.json").unlink(), "not a complete backup"),
    "a part of the manifest": (lambda copy: (copy / "backup.json").write_text('{"format": 1'), "damaged"),
    "a manifest without fields": (lambda copy: (copy / "backup.json").write_text('{"format": 1}'), "damaged"),
    "a manifest that is nested too deeply": (lambda copy: (copy / "backup.json").write_text("[" * 30_000), "damaged"),
    "a number that is text": (lambda copy: _renumber(copy, {"format": "1"}), "damaged"),
    "a newer format": (lambda copy: _renumber(copy, {"format": 2}), "upgrade Onceward"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_backup_is_refused_and_nothing_is_left(copy: Path, tmp_path: Path, damage: str) -> None:
    change, message = DAMAGES[damage]
    change(copy)

    with pytest.raises(InvalidInput, match=message):
        restore(copy, Config(HubSettings(data_dir=str(tmp_path / "new"))))

    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("name", ["../outside.db", "/outside.db", "blobs", ""])
def test_a_manifest_cannot_name_a_file_outside_of_the_backup(copy: Path, tmp_path: Path, name: str) -> None:
    file = copy / "backup.json"
    found = json.loads(file.read_text())
    found["database"]["name"] = name
    file.write_text(json.dumps(found))
    (copy.parent / "outside.db").write_bytes((copy / "hub.db").read_bytes())

    with pytest.raises(InvalidInput, match="damaged"):
        restore(copy, Config(HubSettings(data_dir=str(tmp_path / "new"))))

    assert not (tmp_path / "new").exists()


def test_only_an_empty_data_folder_is_restored_into(copy: Path, tmp_path: Path) -> None:
    new = tmp_path / "new"
    new.mkdir()
    (new / "notes").write_text("mine")

    with pytest.raises(AlreadyThere, match="not empty"):
        restore(copy, Config(HubSettings(data_dir=str(new))))
    with pytest.raises(InvalidConfig, match="only into the data folder"):
        restore(copy, Config(HubSettings(data_dir=str(tmp_path / "other"), database="sqlite:///x.db")))

    assert [file.name for file in new.iterdir()] == ["notes"]
    (new / "notes").unlink()
    restore(copy, Config(HubSettings(data_dir=str(new))))
    assert sorted(file.name for file in new.iterdir()) == ["blobs", "hub.db", "ledger.db"]


def test_no_hub_starts_on_a_part_of_its_data(copy: Path, tmp_path: Path) -> None:
    """A killed restore leaves its subfolder behind."""
    config = Config(HubSettings(data_dir=str(tmp_path / "new")))
    seen: list[str] = []

    def start(_done: int, _total: int | None) -> None:
        with pytest.raises(InvalidConfig, match="is running or was interrupted"), data_folder.opened(config):
            pass
        seen.append("refused")

    restore(copy, config, start)

    assert seen
    with data_folder.opened(config):
        pass


def test_a_hub_without_blobs_is_restored_without_a_finding(tmp_path: Path) -> None:
    """`onceward doctor` is how an operator tests a restore."""
    config = Config(HubSettings(data_dir=str(tmp_path / "data")))
    with data_folder.opened(config), data_folder.ledger(config) as ledger:
        ledger.blocking.run("k", lambda: "done", effect="irreversible")
    back_up(config, tmp_path / "copy")
    restored = Config(HubSettings(data_dir=str(tmp_path / "new")))
    restore(tmp_path / "copy", restored)

    (found,) = blobs_checks(restored)
    assert found.level is Level.OK
