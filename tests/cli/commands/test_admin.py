"""`onceward admin`: usage of principals, wrong counters, and progress on a terminal."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest
from tests.cli.conftest import Onceward

from onceward.cli import main
from onceward.hub.config import data_folder
from onceward.hub.config.config import Config, HubSettings


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_usage_lists_who_stores_how_much(onceward: Onceward, tmp_path: Path) -> None:
    before = (
        {one["principal"]: one for one in onceward.json("admin", "usage")["usage"]} if onceward.blobs.exists() else {}
    )
    task = onceward.json("task", "add", "usage")["id"]
    (tmp_path / "file").write_bytes(b"x" * 2048)
    onceward("attach", "add", task, "file", "--kind", "artifact")
    found = onceward.json("admin", "usage")
    head, line = onceward.text("admin", "usage").splitlines()
    (usage,) = found["usage"]

    assert found["max_bytes_per_principal"] == 0
    assert usage["principal"] == "local"
    assert usage["stored_bytes"] - before.get("local", {"stored_bytes": 0})["stored_bytes"] == 2048
    assert head.split() == ["PRINCIPAL", "ATTACHMENTS", "BYTES", "SIZE", "QUOTA"]
    assert line.split()[:3] == ["local", str(usage["attachment_count"]), str(usage["stored_bytes"])]
    assert line.endswith("no quota")


@pytest.mark.parametrize("onceward", ["folder"], indirect=True)
def test_a_command_obeys_the_quota_and_fsck_corrects_a_counter(onceward: Onceward, tmp_path: Path) -> None:
    (tmp_path / "onceward.toml").write_text("[attachments]\nmax_bytes_per_principal = 10\n", "utf-8")
    (tmp_path / "file").write_bytes(b"123456")
    onceward("task", "add", "x", "--id", "t1")
    first = onceward("attach", "add", "t1", "file", "--kind", "artifact")
    second = onceward("attach", "add", "t1", "file", "--kind", "artifact")
    with data_folder.opened(Config(HubSettings(data_dir="data"))) as database, database.write() as tx:
        tx.exec_driver_sql("UPDATE stored_bytes SET stored_bytes = 1")
    wrong = onceward("admin", "fsck")
    corrected = onceward.json("admin", "usage")["usage"][0]["stored_bytes"]

    assert (first.code, second.code) == (0, 2)
    assert "6 bytes do not fit into the quota of 'local': 6 of 10 bytes are used" in second.err
    assert wrong.code == 1
    assert wrong.out.decode().splitlines()[-1].split() == ["local", "1", "6", "true"]
    assert corrected == 6
    assert onceward.text("admin", "fsck") == "all blobs are intact"


def test_progress_of_a_hub_is_shown_on_a_terminal_and_not_with_json(
    hub: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_bytes(b"x" * 1000)
    monkeypatch.chdir(tmp_path)
    where = ["--hub", hub[0]]
    assert main(["task", "add", "x", "--id", "progress", "--spec-id", "docs/spec.md", *where]) == 0
    assert main(["attach", "add", "progress", "file", "--kind", "artifact", *where]) == 0
    shown = []
    for command in (["fsck"], ["gc-blobs", "--dry-run"], ["backfill-spec-attachments"], ["fsck", "--json"]):
        monkeypatch.setattr(sys, "stderr", terminal := Terminal())
        assert main(["admin", *command, *where]) == 0
        shown.append(terminal.getvalue())
    capsys.readouterr()

    checked, collected, backfilled, as_json = shown
    assert "checking" in checked
    assert "bytes" in checked or "kB" in checked
    assert "garbage collection" in collected
    assert "/" in collected.partition("garbage collection")[2]
    assert "checking tasks" in backfilled
    assert "1/1" in backfilled
    assert as_json == ""
