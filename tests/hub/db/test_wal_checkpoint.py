"""The WAL is checkpointed while others write, and a failure of the checkpoint loses nothing."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import text
from tests.waiting import until

from onceward.hub.db import wal_checkpoint
from onceward.hub.db.engine import Database, open_database
from onceward.hub.db.wal_checkpoint import ROWS, WalCheckpoint

# A row of a page.
_FILL = text("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < :rows) "
             "INSERT INTO t SELECT hex(randomblob(2000)) FROM n")  # fmt: skip


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "hub.db"


@pytest.fixture
def database(file: Path) -> Iterator[Database]:
    with closing(open_database(f"sqlite:///{file}")) as database:
        with database.write() as tx:
            tx.execute(text("CREATE TABLE t (a TEXT)"))
        yield database


def fill(database: Database, rows: int) -> None:
    with database.write() as tx:
        tx.execute(_FILL, {"rows": rows})


def checkpoint_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "onceward-checkpoint"]


def test_many_changed_rows_are_checkpointed_by_a_separate_thread(database: Database, file: Path) -> None:
    before = file.stat().st_size
    for _ in range(4):
        fill(database, ROWS // 4)

    until(lambda: file.stat().st_size > before + 4096 * ROWS // 2, "a copy")
    assert len(checkpoint_threads()) == 1


def test_a_few_changed_rows_stay_in_the_log_without_a_thread(database: Database, file: Path) -> None:
    before = file.stat().st_size
    fill(database, ROWS - 1)

    assert (file.stat().st_size, checkpoint_threads()) == (before, [])


def test_a_rolled_back_transaction_does_not_count(database: Database) -> None:
    class Undone(Exception):
        pass

    def undo() -> None:
        with database.write() as tx:
            tx.execute(_FILL, {"rows": ROWS})
            raise Undone

    with pytest.raises(Undone):
        undo()

    assert checkpoint_threads() == []


def test_the_thread_ends_with_the_database(file: Path) -> None:
    with closing(open_database(f"sqlite:///{file}")) as database:
        with database.write() as tx:
            tx.execute(text("CREATE TABLE t (a TEXT)"))
        fill(database, ROWS)
        assert len(checkpoint_threads()) == 1

    assert checkpoint_threads() == []
    assert not file.with_name("hub.db-wal").exists()


def test_an_idle_thread_ends_and_another_begins_when_there_is_more(
    database: Database, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wal_checkpoint, "IDLE_SECONDS", 0.01)
    fill(database, ROWS)
    until(lambda: not checkpoint_threads(), "the end of the thread")
    before = file.stat().st_size

    fill(database, ROWS)

    until(lambda: file.stat().st_size > before, "another copy")


def test_a_failed_checkpoint_is_silent_and_retried(tmp_path: Path) -> None:
    nowhere = tmp_path / "missing"
    checkpoint = WalCheckpoint(str(nowhere / "hub.db"))
    checkpoint.add(ROWS)
    until(lambda: not checkpoint_threads(), "the end of the thread")
    nowhere.mkdir()
    with closing(sqlite3.connect(nowhere / "hub.db", isolation_level=None)) as other:
        other.execute("PRAGMA journal_mode = WAL")
        other.execute("CREATE TABLE t (a TEXT)")
        before = (nowhere / "hub.db").stat().st_size
        checkpoint.add(ROWS)

        until(lambda: (nowhere / "hub.db").stat().st_size > before, "a copy")
    checkpoint.close()
    checkpoint.add(ROWS)
    assert checkpoint_threads() == []


def test_a_reader_does_not_block_a_writer_while_a_checkpoint_is_due(database: Database) -> None:
    with database.read() as tx:
        seen = tx.execute(text("SELECT count(*) FROM t")).scalar()
        for _ in range(3):
            fill(database, ROWS)
        assert tx.execute(text("SELECT count(*) FROM t")).scalar() == seen
    with database.read() as tx:
        assert tx.execute(text("SELECT count(*) FROM t")).scalar() == 3 * ROWS
