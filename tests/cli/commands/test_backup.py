"""`onceward backup` and `restore`: exit codes and output."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from onceward.cli import main
from onceward.hub.backup import backup, restore


def test_a_folder_is_backed_up_and_restored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file.txt").write_text("hello")
    assert main(["task", "add", "one", "--id", "t1", "--data-dir", "data"]) == 0
    assert main(["attach", "add", "t1", "file.txt", "--kind", "other", "--data-dir", "data"]) == 0
    capsys.readouterr()

    assert main(["backup", "copy", "--data-dir", "data"]) == 0
    assert "blobs       1, 5 bytes" in capsys.readouterr().out
    assert main(["restore", "copy", "--data-dir", "new", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["folder"], shown["blobs"]["count"], shown["database"]["tables"]["tasks"]) == ("new", 1, 1)
    assert main(["task", "list", "--data-dir", "new"]) == 0
    assert "t1" in capsys.readouterr().out

    assert main(["backup", "copy", "--data-dir", "data"]) == 1
    assert "'copy' is not empty" in capsys.readouterr().err
    assert main(["restore", "copy", "--data-dir", "data"]) == 1
    assert "the data folder 'data' is not empty" in capsys.readouterr().err
    assert main(["restore", "data", "--data-dir", "other"]) == 2
    assert "is not a complete backup" in capsys.readouterr().err
    blob = next(file for file in Path("data/blobs/sha256").rglob("*") if file.is_file())
    blob.unlink()
    assert main(["backup", "second", "--data-dir", "data"]) == 1
    assert "1 blobs are not in the backup" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["backup", "restore"])
def test_a_command_that_sigterm_ends_leaves_nothing(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that the next run does not find a folder that is not empty."""
    monkeypatch.chdir(tmp_path)
    assert main(["task", "add", "one", "--data-dir", "data"]) == 0
    assert main(["backup", "copy", "--data-dir", "data"]) == 0
    arguments = {"backup": ["backup", "new", "--data-dir", "data"], "restore": ["restore", "copy", "--data-dir", "new"]}

    def terminate(*_arguments: object) -> None:
        assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL, "this process would end"
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(backup, "sync_tree", terminate)
    monkeypatch.setattr(restore, "sync_tree", terminate)
    with pytest.raises(SystemExit) as ended:
        main(arguments[command])

    assert ended.value.code == 128 + signal.SIGTERM
    assert not (tmp_path / "new").exists()
