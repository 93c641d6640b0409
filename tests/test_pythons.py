"""`make test-pythons` runs on each version that it was asked for, or fails."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.pythons import find_python, main

THIS = "{}.{}".format(*sys.version_info)


@pytest.fixture(autouse=True)
def empty_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))


def install(program: Path, text: str) -> None:
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\n{text}\n")
    program.chmod(0o755)


def test_a_missing_version_is_an_error_that_says_how_to_get_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["3.98", "3.99"], tmp_path) == 1

    printed = capsys.readouterr()
    assert printed.out == ""
    assert "no Python 3.98 or 3.99 on this machine" in printed.err
    assert "pyenv install 3.98 3.99" in printed.err


def test_no_version_at_all_is_an_error(tmp_path: Path) -> None:
    assert main([], tmp_path) == 1


def test_a_program_that_does_not_run_or_is_another_version_is_passed_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A shim of pyenv is on the path for each installed version, and refuses to start those that are not chosen."""
    install(tmp_path / "bin" / f"python{THIS}", "exit 127")
    install(tmp_path / ".pyenv" / "versions" / f"{THIS}.1" / "bin" / "python", "echo 3.1")
    assert find_python(THIS, tmp_path) is None

    works = tmp_path / ".pyenv" / "versions" / f"{THIS}.0" / "bin" / "python"
    install(works, f'exec "{sys.executable}" "$@"')
    assert main([THIS], tmp_path) == 0
    assert capsys.readouterr().out == f"{THIS}={works}\n"
