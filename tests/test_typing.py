"""The documented code passes `mypy --strict`, and code that cannot work does not."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.markdown import RUN, blocks

from onceward import open_ledger
from onceward.errors import InvalidOption
from onceward.ledger.terms import terms_for
from onceward.tools import Toolbox, tool

ROOT = Path(__file__).parent.parent
STRICT = [ROOT / "README.md", ROOT / "docs" / "guides" / "ledger.md", ROOT / "docs" / "guides" / "mcp.md"]

CONNECTIONS = """
import sqlite3

import psycopg
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session

from onceward import current_claim
from onceward.http import idempotency


async def awaited(one: AsyncConnection, two: AsyncSession, three: psycopg.AsyncConnection) -> None:
    for connection in (one, two, three):
        bound = await current_claim().bind(connection)
        await bound.settle({"paid": 1})
        response = await idempotency({}).bind(connection)
        await response.settle({"paid": 1})


def waited(one: sqlite3.Connection, two: psycopg.Connection, three: sqlalchemy.Connection, four: Session) -> None:
    for connection in (one, two, three, four):
        bound = current_claim().bind(connection)
        bound.settle({"paid": 1})
        idempotency({}).bind(connection).settle({"paid": 1})
"""

WRONG = """
import sqlite3

from onceward import current_claim, open_ledger
from onceward.tools import Toolbox, tool

ledger = open_ledger("memory:")
ledger.once(key="k", effect="irreversable")  # wrong
ledger.blocking.run("k", dict, effect="irreversable")  # wrong
tool(effect="irreversable")  # wrong
Toolbox().tool(effect="irreversable")  # wrong


async def settles(connection: sqlite3.Connection) -> None:
    await ledger.run("k", dict, effect="irreversable")  # wrong
    await current_claim().bind(connection)  # wrong
    await current_claim().bind(connection).settle(1)  # wrong
"""


@pytest.fixture(scope="module")
def errors(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """The errors of `mypy --strict` in each file: `connections.py`, one for each page, and `wrong.py`."""
    folder = tmp_path_factory.mktemp("typing")
    files = {"connections.py": CONNECTIONS, "wrong.py": WRONG}
    for page in STRICT:
        lines: list[str] = []
        for block in blocks(page):
            if block.kind == RUN:
                lines += [""] * (block.line - len(lines)) + block.text.splitlines()
        files[f"page_{page.stem.lower()}.py"] = "\n".join(lines) + "\n"
    for name, text in files.items():
        (folder / name).write_text(text)
    command = [sys.executable, "-m", "mypy", "--strict", "--hide-error-context", "--no-error-summary"]
    command += [str(folder / name) for name in files]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert not done.stderr, done.stderr
    found: dict[str, list[str]] = {name: [] for name in files}
    for line in done.stdout.splitlines():
        if ": error: " in line:
            found.setdefault(Path(line.partition(":")[0]).name, []).append(line)
    return found


def test_the_documented_code_passes_a_strict_type_checker(errors: dict[str, list[str]]) -> None:
    assert [line for name, lines in errors.items() if name != "wrong.py" for line in lines] == []


def test_a_type_checker_finds_code_that_cannot_work(errors: dict[str, list[str]]) -> None:
    expected = {number for number, line in enumerate(WRONG.splitlines(), 1) if line.endswith("# wrong")}

    assert {int(line.split(":")[1]) for line in errors["wrong.py"]} == expected


def test_an_unknown_effect_is_refused_at_run_time() -> None:
    wrong: Any = "irreversable"
    with open_ledger("memory:") as ledger:
        tries: list[Callable[[], object]] = [
            lambda: ledger.once(key="k", effect=wrong),
            lambda: ledger.blocking.run("k", dict, effect=wrong),
            lambda: tool(effect=wrong)(print),
            lambda: Toolbox().tool(effect=wrong)(print),
            lambda: terms_for(wrong, {}),
        ]
        for declare in tries:
            with pytest.raises(InvalidOption, match="irreversable"):
                declare()
