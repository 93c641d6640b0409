"""Completion in shells, which click generates: the scripts are valid, and commands and options are completed."""

from __future__ import annotations

import subprocess

import pytest

from onceward.cli.root_command import run


def completed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: str) -> set[str]:
    """Return what bash is offered for the last of these words."""
    monkeypatch.setenv("_ONCEWARD_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(words.count(" ")))
    with pytest.raises(SystemExit):
        run([])
    return {line.partition(",")[2] for line in capsys.readouterr().out.splitlines()}


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("onceward cl", {"claims"}),
        ("onceward claims re", {"resolve"}),
        ("onceward claims resolve --comm", {"--committed"}),
        ("onceward backup --da", {"--data-dir", "--database"}),
    ],
)
def test_commands_and_options_are_completed(
    words: str, offered: set[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert completed(monkeypatch, capsys, words) == offered


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_gets_a_script(
    shell: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("_ONCEWARD_COMPLETE", f"{shell}_source")
    with pytest.raises(SystemExit):
        run([])
    script = capsys.readouterr().out

    assert f"_ONCEWARD_COMPLETE={shell}_complete" in script
    if shell == "bash":
        checked = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, check=False)
        assert (checked.returncode, checked.stderr) == (0, "")
