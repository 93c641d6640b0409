"""Opening a database, and the two kinds of transaction."""

from __future__ import annotations

import threading
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy
from sqlalchemy import text

from onceward.errors import InvalidStoreUrl, StoreUnavailable
from onceward.hub.db.engine import Database, open_database
from onceward.hub.db.timestamps import new_id, now_text

INSERT = text("INSERT INTO topics (id, title, created_at) VALUES (:id, 'T', '2026')")
COUNT = text("SELECT count(*) FROM topics")


@pytest.mark.parametrize(
    "url",
    [
        "",
        "hub.db",
        "mysql://localhost/x",
        "sqlite://",
        "sqlite:///",
        "sqlite://host/x",
        "sqlite:///none/such/hub.db",
        "redis://x",
    ],
)
def test_an_invalid_database_url_is_refused_with_an_example(url: str) -> None:
    with pytest.raises(InvalidStoreUrl, match=r"sqlite:///|folder"):
        open_database(url)


def test_a_refusal_does_not_show_the_password() -> None:
    with pytest.raises(InvalidStoreUrl) as refusal:
        open_database("postgresql://me:secret@host:port/x")

    assert "secret" not in str(refusal.value)


def test_an_unreachable_database_is_unavailable() -> None:
    with closing(open_database("postgresql://postgres@127.0.0.1:9/none")) as database:
        with pytest.raises(StoreUnavailable), database.read():
            pass
        with pytest.raises(StoreUnavailable), database.write():
            pass


def test_a_write_that_raises_leaves_nothing(database: Database) -> None:
    def half_done() -> None:
        with database.write() as tx:
            tx.execute(INSERT, {"id": "a"})
            raise KeyError

    with pytest.raises(KeyError):
        half_done()
    with database.write() as tx:
        tx.execute(INSERT, {"id": "b"})

    with database.read() as tx:
        assert tx.execute(text("SELECT id FROM topics")).scalars().all() == ["b"]


def test_a_read_sees_one_snapshot(database: Database) -> None:
    with database.read() as tx:
        before = tx.execute(COUNT).scalar()
        with database.write() as other:
            other.execute(INSERT, {"id": "a"})
        assert tx.execute(COUNT).scalar() == before == 0

    with database.read() as tx:
        assert tx.execute(COUNT).scalar() == 1


def test_readers_and_writers_do_not_wait_for_each_other(database: Database) -> None:
    with database.write() as tx:
        tx.execute(INSERT, {"id": "a"})
        with database.read() as other:
            assert other.execute(COUNT).scalar() == 0


def test_foreign_keys_are_enforced_on_every_connection(database: Database) -> None:
    orphan = text(
        "INSERT INTO messages (id, topic_id, sender, content, created_at) VALUES ('m', 'none', 's', 'c', '2026')"
    )
    for _ in range(3):
        with pytest.raises(sqlalchemy.exc.IntegrityError), database.write() as tx:
            tx.execute(orphan)


def test_sqlite_keeps_every_acknowledged_commit(tmp_path: Path) -> None:
    with closing(open_database(f"sqlite:///{tmp_path}/x.db")) as database, database.read() as tx:
        assert tx.execute(text("PRAGMA journal_mode")).scalar() == "wal"
        assert tx.execute(text("PRAGMA synchronous")).scalar() == 2
        # Of use on macOS alone.
        assert tx.execute(text("PRAGMA fullfsync")).scalar() == 1
        assert tx.execute(text("PRAGMA checkpoint_fullfsync")).scalar() == 1


def test_many_concurrent_writers_of_one_process_all_succeed(database: Database) -> None:
    def write(name: str) -> None:
        for number in range(5):
            with database.write() as tx:
                # A reader that becomes a writer: without the lock at the beginning SQLite refuses one of two.
                tx.execute(COUNT)
                tx.execute(INSERT, {"id": f"{name}-{number}"})

    threads = [threading.Thread(target=write, args=(f"w{n}",)) for n in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    with database.read() as tx:
        assert tx.execute(COUNT).scalar() == 200


def test_ids_and_times_sort_in_the_order_of_creation() -> None:
    ids = [new_id("att") for _ in range(1000)]
    times = [now_text() for _ in range(10)]

    assert ids == sorted(set(ids))
    assert times == sorted(times)
    assert {len(one) for one in ids} == {4 + 21}
    assert {len(one) for one in times} == {27}
