"""The command line: wrong use, imports, and starting it as a user does."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.test_reference import commands
from tests.hub.hub_process import environment

from onceward.cli import main
from onceward.cli.root_command import onceward

COMMANDS = [list(path[1:]) for path, _ in commands(onceward, "onceward")]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=30, check=False, env=environment()
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["sevre"], "onceward: No such command 'sevre'"),
        (["serve", "--prot", "1"], "onceward: No such option"),
        (["serve", "--port", "high"], "onceward: hub.port (flag --port): expected a whole number from 0 to 65535, not 'high'"),
        (["serve", "extra"], "onceward: Got unexpected extra argument"),
        (["config", "--config", "missing.toml"], "onceward: the configuration file 'missing.toml' does not exist"),
        (["token", "create"], "onceward: Missing argument 'NAME'; see onceward token create --help"),
        (["token", "create", "ada"], "onceward: Missing option '--scope'. Choose from: read, write, admin, metrics, read:topics,"),
        (["token", "create", "ada", "--scope", "own"], "onceward: Invalid value for '--scope': 'own' is not one of"),
        (["token", "create", " ", "--scope", "read"], "onceward: a token's name must be"),
        (["attach", "add", "t", "none", "--kind", "spec"], "onceward: Invalid value for 'FILE': File 'none' does not exist"),
        (["attach", "add", "t", ".", "--kind", "spec"], "onceward: Invalid value for 'FILE': File '.' is a directory"),
        (["attach", "add", "t", "-"], "onceward: Missing option '--kind'"),
        (["attach", "add", "t", "-", "--kind", "pic"], "onceward: Invalid value for '--kind': 'pic' is not one of"),
        (["attach", "add", "t", "-", "--kind", "spec", "--meta", "[1]"], "onceward: Invalid value for '--meta': expected a JSON object, such as"),
        (["attach", "add", "t", "-", "--kind", "spec", "--meta", "{"], "onceward: Invalid value for '--meta': not valid JSON"),
        (["attach", "add", "t", "-", "--kind", "spec", "--meta", '{"a":1,"a":2}'], "onceward: Invalid value for '--meta': not valid JSON: an object has the same key twice"),
        (["attach", "add-link", "t", "--kind", "spec"], "onceward: Give exactly one of --url and --repo-path; see onceward attach add-link"),
        (["attach", "add-link", "t", "--kind", "spec", "--url", "u", "--repo-path", "p"], "onceward: Give exactly one of --url"),
        (["attach", "get", "at-1"], "onceward: Missing option '--output'"),
        (["task", "list", "--limit", "0"], "onceward: Invalid value for '--limit'"),
        (["task", "list", "--hub", "nowhere"], "onceward: the URL of a hub must begin with http://"),
        (["task", "list", "--hub", "http://h", "--data-dir", "d"], "onceward: --hub connects to a running hub and cannot be combined with --data-dir"),
        (["task", "add", " "], "onceward: title must not be"),
        (["admin", "gc-blobs"], "onceward: Give exactly one of --dry-run and --apply; see onceward admin gc-blobs --help"),
        (["admin", "gc-blobs", "--apply", "--dry-run"], "onceward: Give exactly one of --dry-run and --apply"),
        (["admin", "gc-blobs", "--apply", "--grace", "-1"], "onceward: Invalid value for '--grace': expected a number of seconds"),
    ],
    ids=[
        "command", "option", "value", "argument", "file", "no-name", "no-scope", "scope", "name", "no-file", "folder",
        "no-kind", "kind", "meta", "meta-json", "meta-twice", "no-link", "two-links", "no-output", "limit", "hub", "hub-and-data", "title",
        "no-mode", "two-modes", "grace",
    ],
)  # fmt: skip
def test_wrong_use_is_one_line_and_code_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2

    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(message)
    assert printed.err.count("\n") == 1


def test_a_failure_is_one_line_and_code_1(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (elsewhere / "hub.db").mkdir()

    assert main(["token", "list", "--database", "sqlite:///hub.db"]) == 1

    printed = capsys.readouterr()
    assert printed.err.startswith("onceward: the database is unavailable:")
    assert printed.err.count("\n") == 1


def test_a_read_command_does_not_create_a_data_folder(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["task", "list", "--data-dir", "there"]) == 1

    assert capsys.readouterr().err == (
        "onceward: no hub data in 'there'; give the folder with --data-dir, or a running hub with --hub\n"
    )
    assert list(elsewhere.iterdir()) == []


def test_without_a_command_it_shows_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2

    assert "Commands:" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["token"], ["task"], ["attach"], ["admin"], *COMMANDS], ids=" ".join)
def test_help_has_examples(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*arguments, "--help"]) == 0

    printed = capsys.readouterr().out
    command = " ".join(["onceward", *arguments])
    assert printed.startswith(f"Usage: {command} ")
    assert arguments not in COMMANDS or re.search(rf"\b{command}\b", printed.partition("Options:")[0].split("\n", 1)[1])


def test_the_effective_settings_are_printed(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (elsewhere / "onceward.toml").write_text("[events]\nkeep_days = 7\n", "utf-8")

    assert main(["config", "--database", "postgresql://u:hush@h/d", "--port", "0"]) == 0

    printed = capsys.readouterr().out
    assert "keep_days = 7  # file onceward.toml" in printed
    assert 'database = "postgresql://u:***@h/d"  # flag --database' in printed
    assert "hush" not in printed


def test_help_and_config_do_not_import_the_server() -> None:
    """Help and settings come at once: none of these is imported for them."""
    script = """
import sys
from onceward.cli import main
main(["--help"]); main(["serve", "--help"]); main(["attach", "add", "--help"]); main(["config"])
heavy = {"fastapi", "starlette", "uvicorn", "sqlalchemy", "alembic", "structlog", "pydantic", "websockets", "psycopg",
         "redis", "httpx", "prometheus_client", "rich", "obstore", "magic", "onceward.hub.tasks", "onceward.hub.client"}
sys.exit(", ".join(sorted(heavy & sys.modules.keys())) or 0)
"""
    done = python("-c", script)

    assert (done.returncode, done.stderr) == (0, "")


def test_it_runs_as_a_module() -> None:
    done = python("-m", "onceward", "--version")

    assert (done.returncode, done.stdout.split()[0], done.stderr) == (0, "onceward", "")


@pytest.mark.parametrize("package", ["click", "uvicorn"])
def test_without_the_extra_it_says_what_to_install(package: str, elsewhere: Path) -> None:
    done = python(
        "-c",
        f"import sys; sys.modules[{package!r}] = None; from onceward.cli import main;"
        f" sys.exit(main(['serve', '--data-dir', {json.dumps(str(elsewhere / 'data'))}]))",
    )

    assert done.returncode == 1
    assert done.stderr == (
        f"onceward: a package that the command needs is not installed ({package}): pip install 'onceward[hub]'\n"
    )
