"""`--token-file`: one token, in a file that other users cannot read."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from onceward.cli import main
from onceward.cli.root_command import onceward
from onceward.cli.token_file import token_in
from onceward.errors import InvalidOption


def read(file: Path) -> str:
    with click.Context(onceward):
        return token_in(file)


def written(folder: Path, content: bytes, mode: int = 0o600) -> Path:
    file = folder / "token"
    file.write_bytes(content)
    file.chmod(mode)
    return file


def test_spaces_around_the_token_are_ignored(tmp_path: Path) -> None:
    assert read(written(tmp_path, b" ow_x \n")) == "ow_x"


@pytest.mark.parametrize("mode", [0o644, 0o602, 0o660, 0o666], ids=oct)
def test_a_file_that_others_can_read_or_change_is_refused(tmp_path: Path, mode: int) -> None:
    with pytest.raises(InvalidOption, match=r"other users can read or change the token file .* run `chmod 600"):
        read(written(tmp_path, b"ow_x\n", mode))


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o640, 0o440], ids=oct)
def test_the_owner_and_the_group_may_read_it(tmp_path: Path, mode: int) -> None:
    assert read(written(tmp_path, b"ow_x\n", mode)) == "ow_x"


@pytest.mark.parametrize("content", [b"", b"\n", b"a b\n", b"a\nb\n", b"x" * 5000], ids=len)
def test_a_file_without_exactly_one_token_is_refused(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(InvalidOption, match="must contain one token"):
        read(written(tmp_path, content))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match="cannot be read: No such file"):
        read(tmp_path / "missing")


@pytest.mark.parametrize("option", ["--token", "--token-file"])
@pytest.mark.parametrize("command", ["doctor", "task list", "claims list", "audit"])
def test_a_token_without_a_hub_is_refused(
    command: str, option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without --hub, the command would answer from the data in the current folder."""
    monkeypatch.chdir(tmp_path)
    file = str(written(tmp_path, b"ow_x\n"))

    assert main([*command.split(), option, file]) == 2
    assert f"{option} is for a running hub: give its URL with --hub" in capsys.readouterr().err


def test_a_token_in_the_environment_is_not_refused_without_a_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ONCEWARD_TOKEN", "x")

    assert main(["task", "add", "T"]) == 0


def test_every_command_with_a_token_also_takes_a_file() -> None:
    def options(command: click.Command) -> list[set[str]]:
        if isinstance(command, click.Group):
            return [found for child in command.commands.values() for found in options(child)]
        return [{option for parameter in command.params for option in parameter.opts}]

    with_token = [found for found in options(onceward) if "--token" in found]

    assert with_token
    assert all("--token-file" in found for found in with_token)
