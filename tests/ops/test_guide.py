"""The operations guide: its commands and options exist, its settings are valid, and its measurements name real tables."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from tests.markdown import blocks, section

from onceward.cli.root_command import onceward
from onceward.hub.config.config import load
from onceward.hub.db.tables import metadata_on

GUIDE = Path(__file__).parent.parent.parent / "docs" / "guides" / "operations.md"
# Without the settings of a pooler, which are not ours.
SETTINGS = [block.text for block in blocks(GUIDE) if block.text.startswith("[") and "[pgbouncer]" not in block.text]


def commands() -> Iterator[list[str]]:
    """Every call of the command in the guide, as words."""
    for block in blocks(GUIDE):
        for line in block.text.splitlines() if block.kind == "sh" else ():
            for part in re.split(r" && |; ", line):
                words = shlex.split(part, comments=True)
                if "onceward" in words and words[0] in {"onceward", "docker"} and words[-1] != "onceward":
                    found = words[len(words) - words[::-1].index("onceward") :]
                    if found[0] in onceward.commands:
                        yield found


def test_every_command_of_the_guide_exists_with_its_options() -> None:
    found = list(commands())

    assert len(found) > 10
    for words in found:
        command: click.Command = onceward
        rest = list(words)
        while isinstance(command, click.Group) and rest:
            command = command.commands[rest.pop(0)]
        known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
        assert [word for word in rest if word.startswith("--") and word not in known] == [], words


@pytest.mark.parametrize("text", SETTINGS, ids=lambda text: text.split()[0])
def test_the_settings_of_the_guide_are_valid(text: str, tmp_path: Path) -> None:
    file = tmp_path / "onceward.toml"
    file.write_text(text)

    assert load(file, {}, {}).sources


def test_every_measured_table_exists() -> None:
    measured = re.findall(r"^\| [^|]*\(([^)]*)\) \| \d", section(GUIDE, "Capacity"), re.MULTILINE)
    names = {name for cell in measured for name in re.findall(r"`([\w.]+)`", cell)}

    assert len(names) >= 8
    assert names - {"platform_idempotency_keys"} <= metadata_on(is_sqlite=False).tables.keys()
