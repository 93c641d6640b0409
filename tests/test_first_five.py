"""The README has a starting point for each of its three readers, which `make first-five` can follow."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.first_five import HEADINGS, Failed, commands, from_clone, packages_of, starting_points

from onceward.cli.root_command import onceward


def test_the_readme_has_a_block_for_every_starting_point() -> None:
    found = {start.name: start for start in starting_points()}

    assert found.keys() == HEADINGS.keys()
    assert packages_of(found["api"].program) == ["fastapi"]
    assert packages_of(found["agents"].program) == []
    assert "add_middleware" in found["api"].blocks[0].text or "Middleware(" in found["api"].blocks[0].text


def test_the_hub_is_started_and_asked() -> None:
    (hub,) = [start for start in starting_points() if start.name == "hub"]
    lines = commands(hub)

    assert any(line in {"make serve", "onceward serve"} for line in lines)
    assert any(line.startswith("curl ") and "Idempotency-Key" in line for line in lines)
    assert "serve" in onceward.commands


def test_a_program_gets_the_imports_above_it_that_it_uses(tmp_path: Path) -> None:
    page = tmp_path / "README.md"
    above = "```python\nimport json, re\nfrom onceward import errors, open_ledger\n\nprint(1)\n```\n"
    sections = [f"## {names[0]}\n\n{above}\n" for names in HEADINGS.values()]
    page.write_text(sections[0] + sections[1].replace(above, "```python\nx = open_ledger(1)\n```\n") + sections[2])

    _, agents, _ = starting_points(page)

    assert agents.program == "from onceward import errors, open_ledger\nx = open_ledger(1)"


@pytest.mark.parametrize("text", ["# Onceward\n", "# Onceward\n\n## Protect an API\n\nOne line.\n"])
def test_a_readme_without_a_starting_point_is_refused(text: str, tmp_path: Path) -> None:
    page = tmp_path / "README.md"
    page.write_text(text)

    with pytest.raises(Failed, match="Protect an API"):
        starting_points(page)


def test_onceward_is_installed_from_the_clone_and_other_packages_by_name() -> None:
    clone = Path("/clone")

    wanted = [from_clone(one, clone) for one in ("onceward", "onceward[langchain]", "onceward-tools", "fastapi")]

    assert wanted == ["/clone", "/clone[langchain]", "onceward-tools", "fastapi"]
    assert packages_of("import asyncio\nfrom langchain.agents import x\nfrom onceward import y") == [
        "onceward[langchain]"
    ]
    with pytest.raises(Failed, match="numpy"):
        packages_of("import numpy")
