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


def mypy(*files: Path) -> list[str]:
    command = [sys.executable, "-m", "mypy", "--strict", "--hide-error-context", "--no-error-summary", *map(str, files)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert not done.stderr, done.stderr
    return [line for line in done.stdout.splitlines() if ": error: " in line]


def test_the_documented_code_passes_a_strict_type_checker(tmp_path: Path) -> None:
    files = [tmp_path / "connections.py"]
    files[0].write_text(CONNECTIONS)
    for page in STRICT:
        lines: list[str] = []
        for block in blocks(page):
            if block.kind == RUN:
                lines += [""] * (block.line - len(lines)) + block.text.splitlines()
        files.append(tmp_path / f"page_{page.stem.lower()}.py")
        files[-1].write_text("\n".join(lines) + "\n")

    assert mypy(*files) == []


def test_a_type_checker_finds_code_that_cannot_work(tmp_path: Path) -> None:
    file = tmp_path / "wrong.py"
    file.write_text(WRONG)
    expected = {number for number, line in enumerate(WRONG.splitlines(), 1) if line.endswith("# wrong")}

    assert {int(line.split(":")[1]) for line in mypy(file)} == expected


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
