"""A raw statement returns the same as through SQLAlchemy, and raises the same errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy.exc
from sqlalchemy import text

from onceward.errors import StoreUnavailable
from onceward.hub.db.engine import Database, open_database
from onceward.hub.db.raw_sql import RawStatement

INSERT = RawStatement("INSERT INTO notes (id, said) VALUES (:id, :said)")
FIND = RawStatement("SELECT id, said FROM notes WHERE id >= :id ORDER BY id")
NEW = RawStatement("INSERT INTO notes (said) VALUES (?)")


@pytest.fixture
def database(empty_url: str) -> Iterator[Database]:
    with closing(open_database(empty_url)) as database:
        with database.write() as tx:
            tx.execute(text("CREATE TABLE notes (id INTEGER PRIMARY KEY, said TEXT)"))
        yield database


def test_it_writes_in_its_transaction_and_reads_with_or_without_one(database: Database) -> None:
    with database.write() as tx:
        assert INSERT.count(tx, {"id": 1, "said": "a"}) == 1
        assert [tuple(row) for row in FIND.rows(tx, {"id": 1})] == [(1, "a")]
        INSERT.count(tx, {"id": 2, "said": None})

    assert [tuple(row) for row in database.rows(FIND, {"id": 2})] == [(2, None)]


def test_a_rolled_back_row_is_not_there(database: Database) -> None:
    def write_and_fail() -> None:
        with database.write() as tx:
            INSERT.count(tx, {"id": 1, "said": "a"})
            raise KeyError

    with pytest.raises(KeyError):
        write_and_fail()

    assert list(database.rows(FIND, {"id": 1})) == []


def test_a_duplicate_row_is_an_integrity_error(database: Database) -> None:
    with database.write() as tx:
        INSERT.count(tx, {"id": 1, "said": "a"})

    with pytest.raises(sqlalchemy.exc.IntegrityError), database.write() as tx:
        INSERT.count(tx, {"id": 1, "said": "b"})


def test_on_sqlite_it_inserts_many_rows_and_returns_new_ids(tmp_path: Path) -> None:
    with closing(open_database(f"sqlite:///{tmp_path}/notes.db")) as database:
        with database.write() as tx:
            tx.execute(text("CREATE TABLE notes (id INTEGER PRIMARY KEY, said TEXT UNIQUE)"))
            NEW.each(tx, [("a",), ("b",)])
            assert NEW.new_id(tx, ("c",)) == 3
        for failing in (lambda tx: NEW.each(tx, [("a",)]), lambda tx: NEW.new_id(tx, ("a",))):
            with pytest.raises(sqlalchemy.exc.IntegrityError), database.write() as tx:
                failing(tx)

        assert [row[1] for row in database.rows(FIND, {"id": 0})] == ["a", "b", "c"]


def test_a_missing_table_raises_the_same_error_as_through_sqlalchemy(tmp_path: Path) -> None:
    with closing(open_database(f"sqlite:///{tmp_path}/empty.db")) as database:
        with pytest.raises(StoreUnavailable, match="no such table"):
            database.rows(FIND, {"id": 1})
        with pytest.raises(StoreUnavailable, match="no such table"), database.write() as tx:
            INSERT.count(tx, {"id": 1, "said": "a"})
