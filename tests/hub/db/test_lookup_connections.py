"""Connections for lookups: reused, never by two callers at once, and never those of a parent process."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy

from onceward.hub.db.engine import Database, open_database
from onceward.hub.db.lookup import IDLE_MAX, ReadConnections
from onceward.hub.db.raw_sql import RawStatement

ONE = RawStatement("SELECT :said")


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with closing(open_database(f"sqlite:///{tmp_path / 'hub.db'}")) as database:
        yield database


@pytest.fixture
def connections(database: Database) -> Iterator[ReadConnections]:
    with closing(ReadConnections(database.engine)) as connections:
        yield connections


def test_a_connection_is_reused_and_does_not_come_from_the_pool(
    connections: ReadConnections, database: Database
) -> None:
    with connections.borrow() as first:
        pass
    with connections.borrow() as again, connections.borrow() as other:
        assert again is first
        assert other is not first

    assert isinstance(database.engine.pool, sqlalchemy.QueuePool)
    assert database.engine.pool.checkedout() == 0


def test_it_has_the_same_pragmas_as_every_connection(connections: ReadConnections) -> None:
    with connections.borrow() as connection:
        assert connection.execute("PRAGMA foreign_keys").fetchone() == (1,)
        assert connection.execute("PRAGMA synchronous").fetchone() == (2,)


def test_a_connection_with_an_error_is_not_reused(connections: ReadConnections) -> None:
    with pytest.raises(sqlite3.OperationalError), connections.borrow() as first:
        first.execute("SELECT * FROM nothing")
    with connections.borrow() as next_one:
        assert next_one is not first
    with pytest.raises(sqlite3.ProgrammingError):
        first.execute("SELECT 1")


def test_a_limited_number_of_idle_connections_is_kept(connections: ReadConnections) -> None:
    borrowing = [connections.borrow() for _ in range(IDLE_MAX + 5)]
    borrowed = [one.__enter__() for one in borrowing]
    for one in borrowing:
        one.__exit__(None, None, None)

    def is_open(connection: sqlite3.Connection) -> bool:
        try:
            connection.execute("SELECT 1")
        except sqlite3.ProgrammingError:
            return False
        return True

    assert sum(is_open(connection) for connection in borrowed) == IDLE_MAX


def test_a_connection_returned_after_close_is_closed(connections: ReadConnections) -> None:
    with connections.borrow() as connection:
        connections.close()
    with pytest.raises(sqlite3.ProgrammingError):
        connection.execute("SELECT 1")


def test_many_threads_borrow_concurrently(database: Database) -> None:
    answers: list[object] = []

    def ask(number: int) -> None:
        answers.extend(database.rows(ONE, {"said": number})[0] for _ in range(50))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(answers) == sorted((number,) for number in range(8) for _ in range(50))  # type: ignore[type-var]


def test_a_child_does_not_touch_the_connections_of_its_parent(connections: ReadConnections) -> None:
    with connections.borrow() as parents:
        pass
    child = os.fork()
    if child == 0:
        with connections.borrow() as own:
            os._exit(0 if own is not parents and own.execute("SELECT 7").fetchone() == (7,) else 1)
    _, status = os.waitpid(child, 0)

    assert status == 0
    with connections.borrow() as again:
        assert again is parents
