"""A program that is missing is an error that says what to do."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.servers import system_packages


def test_a_program_is_found_on_the_path_and_a_missing_one_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(system_packages, "_FOLDERS", ())

    with pytest.raises(RuntimeError, match="run `make system-packages`"):
        system_packages.program("pgbouncer")
    assert system_packages.install("pgbouncer") == "this system has no apt-get"

    program = tmp_path / "pgbouncer"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    assert system_packages.program("pgbouncer") == program


def test_a_variable_names_a_program_that_is_somewhere_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    browser = tmp_path / "my-browser"
    monkeypatch.setenv("ONCEWARD_CHROMIUM", str(browser))

    with pytest.raises(RuntimeError, match="name the program in ONCEWARD_CHROMIUM"):
        system_packages.program("chromium")

    browser.write_text("#!/bin/sh\n")
    browser.chmod(0o755)
    assert system_packages.program("chromium") == browser
