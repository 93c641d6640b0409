"""`--json` on every command: each has it or a reason not to, and what it prints is one JSON object."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from onceward.cli import main
from onceward.cli.root_command import onceward

# Commands that print no result, and why.
WITHOUT = {
    "serve": "runs until it is stopped, and writes a log",
    "console": "runs until it is stopped, and writes a log",
    "mcp wrap": "speaks the protocol of MCP on standard output",
}
# Commands whose JSON other tests read, because it needs more than a data folder.
ELSEWHERE = {
    "demo": "tests/cli/demo/test_story.py",
    "claims show": "tests/cli/commands/test_claims.py",
    "claims resolve": "tests/cli/commands/test_claims.py",
    "claims abandon": "tests/cli/commands/test_claims.py",
    "claims forget": "tests/cli/commands/test_claims.py",
    "restore": "tests/cli/commands/test_backup.py",
}
# In this order, on one data folder that has a task and an attachment.
DATA = ("--data-dir", "data")
RUN = {
    "config": (*DATA,),
    "schema print": ("--ledger", "postgresql://", "--role", "app"),
    "schema create": ("--ledger", "sqlite:///ledger.db"),
    "token create": ("ada", "--scope", "read", *DATA),
    "token list": DATA,
    "token revoke": ("ada", *DATA),
    "token open-local": ("--yes", *DATA),
    "task add": ("T", *DATA),
    "task list": DATA,
    "task show": ("t1", *DATA),
    "attach add": ("t1", "file", "--kind", "artifact", *DATA),
    "attach add-link": ("t1", "--kind", "spec", "--url", "https://example.com/", *DATA),
    "attach list": ("t1", *DATA),
    "attach show": ("{attachment}", *DATA),
    "attach get": ("{attachment}", "--output", "copy", *DATA),
    "attach label": ("{attachment}", "red", *DATA),
    "attach rm": ("{attachment}", *DATA),
    "ingest policies": DATA,
    "ingest test-mode": DATA,
    "ingest explain": ("message.json", *DATA),
    "ingest backfill": ("messages.jsonl", *DATA),
    "claims list": DATA,
    "claims purge": DATA,
    "admin gc-blobs": ("--dry-run", *DATA),
    "admin fsck": DATA,
    "admin usage": DATA,
    "admin backfill-spec-attachments": DATA,
    "audit": DATA,
    "backup": ("copy-of-the-data", *DATA),
    "doctor": DATA,
    "task rm": ("t1", *DATA),
}
MESSAGE = {"source": "notes", "title": "T", "capture_text": "a thought"}


def commands(command: click.Command, *path: str) -> Iterator[tuple[str, click.Command]]:
    if isinstance(command, click.Group):
        for name, child in command.commands.items():
            yield from commands(child, *path, name)
    else:
        yield " ".join(path), command


COMMANDS = dict(commands(onceward))


def test_every_command_has_json_or_a_reason() -> None:
    lacking = {name for name, command in COMMANDS.items() if not any("--json" in one.opts for one in command.params)}

    assert lacking <= set(WITHOUT)
    assert set(COMMANDS) - set(WITHOUT) == set(RUN) | set(ELSEWHERE), "run the new command here, or say where it is run"


def test_the_json_of_every_command_is_one_object(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("text", "utf-8")
    Path("message.json").write_text(json.dumps(MESSAGE), "utf-8")
    Path("messages.jsonl").write_text(json.dumps(MESSAGE), "utf-8")
    assert main(["task", "add", "T", "--id", "t1", *DATA]) == 0
    capsys.readouterr()
    assert main(["attach", "add", "t1", "file", "--kind", "artifact", "--json", *DATA]) == 0
    attachment = json.loads(capsys.readouterr().out)["id"]
    shown = {}
    for name, arguments in RUN.items():
        code = main([*name.split(), *(one.format(attachment=attachment) for one in arguments), "--json"])
        printed = capsys.readouterr()
        assert code in {0, 1, 2} if name == "doctor" else code == 0, (name, printed.err)
        shown[name] = json.loads(printed.out)

    assert all(isinstance(one, dict) for one in shown.values())
    assert shown["config"]["settings"]["hub"]["data_dir"] == {"value": "data", "source": "flag --data-dir"}
    assert "CREATE TABLE" in shown["schema print"]["sql"]
    assert "GRANT" in shown["schema print"]["grants"]
    assert shown["schema create"]["created"] is False
    assert shown["token open-local"]["open_since"].endswith("Z")
