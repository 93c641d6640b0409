"""A stuck transaction or other server settings: no caller waits forever, and a write means the same everywhere."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import text
from tests.servers.postgres import PostgresServer
from tests.waiting import SECONDS_MAX, until

from onceward.errors import StoreUnavailable
from onceward.hub import topics
from onceward.hub.db import engine
from onceward.hub.db.engine import Database, open_database
from onceward.hub.db.postgres.engine import IDLE_SECONDS, LOCK_SECONDS
from onceward.hub.topics.attachment import Attached


@pytest.fixture
def database_with_weak_settings(postgres_server: PostgresServer, postgres_template: str) -> Iterator[Database]:
    """A database whose owner prefers other settings than ours."""
    url = postgres_server.create_database(postgres_template)
    name = sql.Identifier(url.rpartition("/")[2])
    with psycopg.connect(url, autocommit=True) as owner:
        for setting in ("default_transaction_isolation = 'serializable'", "synchronous_commit = 'off'"):
            owner.execute(sql.SQL("ALTER DATABASE {} SET " + setting).format(name))
    with closing(open_database(url)) as database:
        yield database


def test_the_settings_of_a_database_do_not_weaken_a_write(database_with_weak_settings: Database) -> None:
    """A writer that waited for the same attachment and is refused by its index finds it, although it is newer than its
    snapshot.
    """
    new = topics.NewAttachment("note", {"a": 1})
    found: list[Attached] = []
    with database_with_weak_settings.write() as tx:
        topic, _ = topics.create_topic(tx, "odd")

    def attach() -> None:
        with database_with_weak_settings.write() as tx:
            found.append(topics.attach(tx, topic.id, new))

    late = threading.Thread(target=attach)
    with database_with_weak_settings.write() as tx:
        first = topics.attach(tx, topic.id, new)
        late.start()
        wait_until_somebody_waits(database_with_weak_settings)
    late.join(SECONDS_MAX)

    assert [(one.attachment.id, one.event_id) for one in found] == [(first.attachment.id, None)]
    with database_with_weak_settings.write() as tx:
        assert tx.execute(text("SHOW synchronous_commit")).scalar() == "on"


def wait_until_somebody_waits(database: Database) -> None:
    waiting = text(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )

    def somebody_waits() -> bool:
        with database.read() as tx:
            return bool(tx.execute(waiting).scalar())

    until(somebody_waits, "nobody waits for a lock")


def test_an_idle_transaction_is_ended(database_with_weak_settings: Database) -> None:
    """Otherwise a process that is frozen while it appends would block all writers until it continues."""
    with database_with_weak_settings.write() as tx:
        assert tx.execute(text("SHOW idle_in_transaction_session_timeout")).scalar() == f"{IDLE_SECONDS}s"
        assert tx.execute(text("SHOW lock_timeout")).scalar() == f"{LOCK_SECONDS}s"

    def stand_still() -> None:
        with database_with_weak_settings.write() as tx:
            topics.create_topic(tx, "lost")
            tx.execute(text("SET LOCAL idle_in_transaction_session_timeout = '50ms'"))
            own = tx.execute(text("SELECT pg_backend_pid()")).scalar_one()
            wait_until_gone(database_with_weak_settings, own)
            tx.execute(text("SELECT 1"))

    with pytest.raises(StoreUnavailable):
        stand_still()

    with database_with_weak_settings.read() as tx:
        assert topics.list_topics(tx, 10).items == []


def wait_until_gone(database: Database, backend: int) -> None:
    there = text("SELECT count(*) FROM pg_stat_activity WHERE pid = :pid")

    def is_gone() -> bool:
        with database.read() as tx:
            return not tx.execute(there, {"pid": backend}).scalar()

    until(is_gone, "the server still has it")


def test_a_lock_that_is_held_for_too_long_is_not_waited_for(database_with_weak_settings: Database) -> None:
    with database_with_weak_settings.write() as holder:
        holder.execute(text("SELECT pg_advisory_xact_lock(1)"))

        with pytest.raises(StoreUnavailable, match="lock timeout"), database_with_weak_settings.write() as tx:
            tx.execute(text("SELECT set_config('lock_timeout', '50ms', true), pg_advisory_xact_lock(1)"))


def test_a_writer_that_waited_too_long_gets_an_error(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("BUSY_SECONDS", "POOL_SECONDS"):
        monkeypatch.setattr(engine, name, 0.05)
    taken = 0
    while database._writers.acquire(blocking=False):
        taken += 1

    with pytest.raises(StoreUnavailable, match="timed out waiting for other writers"), database.write():
        pass
    with database.read() as tx:
        assert topics.list_topics(tx, 10).items == [], "who reads has a connection all the same"

    database._writers.release(taken)
    with database.write() as tx:
        topics.create_topic(tx, "in turn")
    assert taken == (1 if database.is_sqlite else engine.POSTGRES_CONNECTIONS - engine.READERS_CONNECTIONS)
