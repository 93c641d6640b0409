"""`onceward doctor`: one line for each check, and an exit code for scripts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from onceward.cli import main
from onceward.hub.doctor import server


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:
    monkeypatch.chdir(tmp_path)
    # The temporary folder may be in memory, which would be a warning.
    monkeypatch.setattr(server, "_MEMORY_FILE_SYSTEMS", frozenset())
    (tmp_path / "file.txt").write_text("hello")
    assert main(["task", "add", "one", "--id", "t1", "--data-dir", "data"]) == 0
    assert main(["attach", "add", "t1", "file.txt", "--kind", "other", "--data-dir", "data"]) == 0
    capsys.readouterr()
    return tmp_path / "data"


def test_the_exit_code_follows_the_worst_finding(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--data-dir", "data"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(line.startswith("ok       ") for line in lines)

    folder.chmod(0o755)
    assert main(["doctor", "--data-dir", "data"]) == 1
    assert any(
        line.startswith("warning  data-folder: ") and " -> chmod" in line
        for line in capsys.readouterr().out.splitlines()
    )

    (folder / "hub.db").unlink()
    assert main(["doctor", "--data-dir", "data", "--json"]) == 2
    shown = json.loads(capsys.readouterr().out)
    assert shown["status"] == "problem"
    assert {one["check"]: one["level"] for one in shown["checks"]}["database"] == "problem"


def test_a_running_hub_and_data_cannot_be_checked_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--hub", "http://127.0.0.1:1", "--data-dir", "data"]) == 2
    assert "cannot be combined with --data-dir" in capsys.readouterr().err


def test_a_token_file_that_others_can_read_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "token"
    file.write_text("onceward_secret")
    file.chmod(0o644)

    assert main(["doctor", "--hub", "http://127.0.0.1:1", "--token-file", str(file)]) == 2
    assert "can read" in capsys.readouterr().err
