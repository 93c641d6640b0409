"""Binding works with every row type of a connection."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row
from tests.backends import BACKENDS, Servers

from onceward import current_claim, errors, open_ledger


def by_name(cursor: sqlite3.Cursor, row: tuple[object, ...]) -> dict[str, object]:
    return {column[0]: value for column, value in zip(cursor.description, row, strict=True)}


@pytest.mark.parametrize("rows", [by_name, sqlite3.Row, None], ids=["dicts", "rows", "tuples"])
def test_sqlite_rows_may_have_any_type(tmp_path: Path, rows: Any) -> None:
    path = tmp_path / "ledger.db"

    def effect() -> None:
        with closing(sqlite3.connect(path)) as connection:
            connection.row_factory = rows
            bound: Any = current_claim().bind(connection)
            bound.settle("sold")
            connection.commit()

    with open_ledger(f"sqlite:///{path}") as ledger:
        assert ledger.blocking.run("sale", effect, effect="idempotent") == "sold"


def test_psycopg_rows_may_have_any_type(servers: Servers, tmp_path: Path) -> None:
    url = BACKENDS["postgres"].url(servers, tmp_path)

    def effect() -> None:
        with psycopg.connect(url, row_factory=dict_row) as connection:
            bound: Any = current_claim().bind(connection)
            bound.settle("sold")

    with open_ledger(url) as ledger:
        assert ledger.blocking.run("sale", effect, effect="idempotent") == "sold"


def test_a_lost_claim_is_reported_with_any_row_type(servers: Servers, tmp_path: Path) -> None:
    url = BACKENDS["postgres"].url(servers, tmp_path)

    def effect() -> None:
        claim = current_claim()
        with psycopg.connect(url, autocommit=True) as other:
            other.execute("UPDATE platform_idempotency_keys SET version = version + 1")
        with psycopg.connect(url, row_factory=dict_row) as connection:
            claim.bind(connection)

    with open_ledger(url) as ledger, pytest.raises(errors.ClaimLost):
        ledger.blocking.run("sale", effect, effect="idempotent", wait_seconds=0)
