"""The reference is complete: every command, every option, every setting with its default."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from onceward.cli.root_command import onceward
from onceward.hub.config.config import TABLES, setting_types

REFERENCE = (Path(__file__).parent.parent.parent / "docs" / "reference.md").read_text("utf-8")


def section(heading: str) -> str:
    found = re.search(rf"^## {heading}\n(.*?)(?=^## )", REFERENCE, re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


def commands(command: click.Command, *path: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    if isinstance(command, click.Group):
        for name, child in command.commands.items():
            yield from commands(child, *path, name)
    else:
        yield path, command


COMMANDS = dict(commands(onceward, "onceward"))


def test_the_reference_has_exactly_these_commands() -> None:
    rows = re.findall(r"^\| `(onceward [a-z -]+)[ `]", section("Command"), re.MULTILINE)

    assert {name.strip() for name in rows} == {" ".join(path) for path in COMMANDS}


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_option_is_in_the_reference_and_has_a_help_text(path: tuple[str, ...]) -> None:
    for parameter in COMMANDS[path].params:
        if isinstance(parameter, click.Option):
            assert parameter.help
            assert all(f"`{option}`" in section("Command") for option in parameter.opts), parameter.opts
        else:
            assert isinstance(parameter, click.Argument)
            assert parameter.make_metavar(click.Context(COMMANDS[path])).strip("[].") in section("Command")


def test_the_exit_codes_are_in_the_reference() -> None:
    assert re.findall(r"^\| (\d+) \|", section("Command"), re.MULTILINE) == ["0", "1", "2", "3", "130", "143"]


def test_every_setting_is_in_the_reference_with_its_default() -> None:
    rows = dict(re.findall(r"^\| `([\w.]+\.\w+)` \| `([^|]*)` \|", section("Configuration"), re.MULTILINE))

    assert rows == {
        f"{table}.{key}": kind.write(getattr(TABLES[table](), key))
        for table in TABLES
        for key, kind in setting_types(table).items()
    }
