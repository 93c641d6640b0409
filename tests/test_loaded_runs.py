"""`make test-loaded`: a failure of any run is named and makes the whole fail."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.loaded_runs import main, run_all
from tests.waiting import SECONDS_MAX, until

# Runs of one clone differ by the files that earlier ones left. MAKEFLAGS would turn `make` into a dry run.
MAKEFILE = """\
test:
\t@test ! -e been-here || { echo 'FAILED tests/test_a.py::test_b - AssertionError'; \
echo '=== 1 failed, 2 passed in 3.00s ==='; exit 1; }
\t@touch been-here; echo '=== 3 passed in 2.00s (0:00:02) ==='
"""

IDENTITY = ("-c", "user.name=ada", "-c", "user.email=ada@example.org")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MAKEFLAGS", "n")
    root = tmp_path / "project"
    root.mkdir()
    (root / "Makefile").write_text(MAKEFILE)
    for command in (["init", "--quiet"], ["add", "."], [*IDENTITY, "commit", "--quiet", "-m", "first"]):
        subprocess.run(["git", *command], cwd=root, check=True)
    return root


def test_runs_without_a_failure_succeed(
    project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)

    code = main(["--runs", "2", "--folder", str(tmp_path / "loaded")])

    *_, first, second, end = capsys.readouterr().out.splitlines()
    assert {line.partition(" of 2: 3 passed, ")[0] for line in (first, second)} == {"run 1", "run 2"}
    assert (code, end) == (0, "onceward: 2 of 2 runs without a failure")


def test_a_failed_run_is_named_and_the_next_one_still_runs(
    project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = run_all(project, tmp_path / "loaded", runs=3, at_once=1)

    _, good, bad, name, again, _, end = capsys.readouterr().out.splitlines()
    assert code == 1
    assert good.startswith("run 1 of 3: 3 passed, ")
    assert bad.startswith("run 2 of 3: 1 failed, 2 passed, ")
    assert bad.endswith(f"; see {tmp_path}/loaded/run-2.log")
    assert name == "  tests/test_a.py::test_b"
    assert again.startswith("run 3 of 3: 1 failed, 2 passed, ")
    assert end == "onceward: 1 of 3 runs without a failure"


def test_ctrl_c_begins_no_further_run(project: Path, tmp_path: Path) -> None:
    (project / "Makefile").write_text("test:\n\t@touch $(BEGUN); sleep 10\n")
    subprocess.run(["git", *IDENTITY, "commit", "--quiet", "-am", "slow"], cwd=project, check=True)
    begun, folder = tmp_path / "begun", tmp_path / "loaded"
    environment = {**os.environ, "BEGUN": str(begun), "PYTHONPATH": str(Path(__file__).parent.parent)}
    command = [sys.executable, "-m", "tests.loaded_runs", "--runs", "3", "--at-once", "1", "--folder", str(folder)]
    with subprocess.Popen(
        command, cwd=project, env=environment, start_new_session=True, stderr=subprocess.DEVNULL
    ) as process:
        until(begun.exists)
        os.killpg(process.pid, signal.SIGINT)
        code = process.wait(SECONDS_MAX)

    assert code != 0
    assert [log.name for log in folder.glob("*.log")] == ["run-1.log"]


def test_an_interrupted_suite_ends_the_runs_and_they_fail(
    project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "Makefile").write_text("test:\n\t@kill -INT $$PPID\n")
    subprocess.run(["git", *IDENTITY, "commit", "--quiet", "-am", "interrupted"], cwd=project, check=True)

    code = run_all(project, tmp_path / "loaded", runs=3, at_once=1)

    assert code == 1
    assert capsys.readouterr().out.endswith("onceward: 0 of 3 runs without a failure\n")
    assert [log.name for log in (tmp_path / "loaded").glob("*.log")] == ["run-1.log"]


def test_a_number_below_one_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--runs", "0"])

    assert "--runs and --at-once must be at least 1" in capsys.readouterr().err
