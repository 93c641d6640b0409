"""Reused databases look new to each test."""

from __future__ import annotations

from contextlib import closing
from typing import LiteralString

import psycopg
import pytest
from tests.backends import Servers
from tests.servers.database_pool import DatabasePool

from onceward.hub.db.engine import open_database
from onceward.hub.events.log import NewEvent, append


@pytest.fixture
def database_pool(servers: Servers, postgres_template: str) -> DatabasePool:
    """Its own: what others gave back is not in it."""
    return DatabasePool(servers.postgres, postgres_template)


def everything(url: str) -> dict[str, object]:
    tables = "SELECT oid::regclass::text FROM pg_class WHERE relkind = 'r' AND relnamespace::regnamespace::text !~ '^pg_|^info'"
    with psycopg.connect(url) as connection:
        names = [name for (name,) in connection.execute(tables).fetchall()]
        rows: dict[str, object] = {
            name: connection.execute(f"SELECT t::text FROM {name} AS t ORDER BY 1").fetchall()  # noqa: S608
            for name in names
        }
        rows["sequences"] = connection.execute("SELECT * FROM pg_sequences ORDER BY 1, 2").fetchall()
    return rows


def write_a_little(url: str) -> None:
    with psycopg.connect(url) as connection:
        connection.execute("DELETE FROM pkm.idempotency_policies")
    with closing(open_database(url)) as database, database.write() as tx:
        append(tx, [NewEvent("lent", None, "test", "1", "{}")])


def test_rows_of_a_previous_borrower_are_gone_and_initial_rows_are_back(database_pool: DatabasePool) -> None:
    with database_pool.borrow() as first:
        before = everything(first)
        write_a_little(first)
        written = everything(first)
    with database_pool.borrow() as second:
        after = everything(second)
        write_a_little(second)
        again = everything(second)

    assert second == first
    assert written != before == after
    assert written["events"] != before["events"]
    assert again["sequences"] == written["sequences"]


@pytest.mark.parametrize(
    "change",
    ["CREATE TABLE mine (a int)", "DROP TRIGGER events_are_kept ON events", "TRUNCATE topics CASCADE"],
)
def test_a_database_with_a_changed_schema_is_not_lent_again(database_pool: DatabasePool, change: LiteralString) -> None:
    with database_pool.borrow() as first, psycopg.connect(first) as connection:
        connection.execute(change)
    with database_pool.borrow() as second:
        assert second != first


def test_a_database_that_is_still_in_use_is_not_lent_again(database_pool: DatabasePool) -> None:
    with database_pool.borrow() as first:
        left = psycopg.connect(first)
    with closing(left), database_pool.borrow() as second:
        assert second != first


def test_a_lent_database_is_exclusive(database_pool: DatabasePool) -> None:
    with database_pool.borrow() as first, database_pool.borrow() as second:
        assert first != second
