"""The hub's database behind a pooler in transaction mode, and without a free connection."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import psycopg
import pytest
import sqlalchemy
from sqlalchemy import text
from tests.backends import Servers
from tests.servers.pgbouncer import Pgbouncer

from onceward.errors import InvalidStoreUrl, StoreOverloaded
from onceward.hub import topics
from onceward.hub.config.config import HubSettings
from onceward.hub.db import engine
from onceward.hub.db.engine import KEPT_CONNECTIONS, POSTGRES_CONNECTIONS, Database, open_database
from onceward.hub.db.lookup import Lookup
from onceward.hub.db.postgres import connection as pooled_connection
from onceward.hub.db.postgres.connection import database_connection
from onceward.hub.db.postgres.engine import IDLE_SECONDS, LOCK_SECONDS
from onceward.hub.db.raw_sql import RawStatement

_SETTINGS = """
    SELECT name, setting FROM pg_settings WHERE name IN (
        'lock_timeout', 'idle_in_transaction_session_timeout', 'plan_cache_mode', 'synchronous_commit',
        'default_transaction_isolation', 'default_transaction_read_only')
"""
# Those that a client has set for the whole session.
_LEAKED = f"{_SETTINGS} AND source = 'session'"
_ONE = Lookup(RawStatement("SELECT 1"), "SELECT 1, 1 WHERE :asked <> ''")

# Far more than a busy machine takes, and far less than the two minutes that the pooler lets its clients wait.
ANSWER_SECONDS_MAX = 30.0


@pytest.fixture(scope="module")
def one_session_pooler(servers: Servers) -> Iterator[Pgbouncer]:
    """A pooler with one connection to each database, so that all clients share a session."""
    with Pgbouncer(servers.postgres, pool_size=1) as pooler:
        yield pooler


@pytest.fixture(scope="module")
def server_url(servers: Servers, postgres_template: str) -> str:
    return servers.postgres.create_database(postgres_template)


@pytest.fixture
def url(one_session_pooler: Pgbouncer, server_url: str) -> str:
    return one_session_pooler.url(server_url)


@pytest.fixture
def database(url: str) -> Iterator[Database]:
    with closing(open_database(url)) as database:
        yield database


def create(title: str) -> Callable[[sqlalchemy.Connection], object]:
    return lambda tx: topics.create_topic(tx, title)


def titles(database: Database) -> list[str]:
    with database.read() as tx:
        return [topic.title for topic in topics.list_topics(tx, 100).items]


def find(database: Database) -> object:
    return asyncio.run(database.lookups.find(_ONE, {}))


# Detection.


def test_a_pooler_is_detected_and_the_parameter_decides_before(url: str, server_url: str) -> None:
    found = {}
    for name, address in {
        "pooler": url,
        "server": server_url,
        "server, transaction": f"{server_url}?pooler=transaction",
        "server, session": f"{server_url}?pooler=session",
    }.items():
        with closing(open_database(address)) as database, database.read() as tx:
            found[name] = database_connection(tx).is_pooled

    assert found == {"pooler": True, "server": False, "server, transaction": True, "server, session": False}


def test_an_unknown_value_of_the_parameter_is_refused(server_url: str) -> None:
    with pytest.raises(InvalidStoreUrl, match="must be transaction or session"):
        open_database(f"{server_url}?pooler=statement")


# A session that all clients share.


def test_settings_hold_for_each_transaction_and_other_clients_never_see_them(database: Database, url: str) -> None:
    with psycopg.connect(url, autocommit=True) as other:
        with database.write() as tx:
            in_write = dict(tuple(row) for row in tx.execute(text(_SETTINGS)))
        with database.read() as tx:
            in_read = dict(tuple(row) for row in tx.execute(text(_SETTINGS)))
            isolation = tx.execute(text("SHOW transaction_isolation")).scalar()
        in_batch = dict(map(tuple, database.writer.run_blocking(lambda tx: tx.execute(text(_SETTINGS)).all())))
        find(database)
        leaked = other.execute(_LEAKED.encode()).fetchall()

    assert leaked == []
    assert in_write["lock_timeout"] == f"{LOCK_SECONDS * 1000}"
    assert in_write["idle_in_transaction_session_timeout"] == f"{IDLE_SECONDS * 1000}"
    assert in_write["synchronous_commit"] == "on"
    assert in_read == in_batch == in_write
    assert isolation == "repeatable read"


def test_settings_that_another_client_left_behind_do_not_matter(database: Database, url: str) -> None:
    with psycopg.connect(url, autocommit=True) as other:
        try:
            other.execute("SET lock_timeout = '1ms'; SET synchronous_commit = off")
            other.execute("SET default_transaction_isolation = 'serializable'")
            with database.write() as tx:
                names = ("lock_timeout", "synchronous_commit", "transaction_isolation")
                found = [tx.execute(text(f"SHOW {name}")).scalar() for name in names]
        finally:
            other.execute("DISCARD ALL")

    assert found == [f"{LOCK_SECONDS}s", "on", "read committed"]


def test_two_processes_can_repeat_their_statements_in_one_session(database: Database, url: str) -> None:
    """The driver would prepare a repeated statement under a name that the other process also uses."""
    with closing(open_database(url)) as second:
        for _ in range(8):
            for one in (database, second):
                with one.read() as tx:
                    topics.list_topics(tx, 1)
                find(one)

        with second.read() as tx:
            assert tx.execute(text("SELECT count(*) FROM pg_prepared_statements")).scalar() == 0


# No free connection.


def test_a_pooler_without_a_free_connection_is_reported_within_seconds_and_nothing_is_written(
    database: Database, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert pooled_connection.START_SECONDS <= 3, "a client should get its 503 within seconds"
    find(database)
    database.writer.run_blocking(create("before"))
    attempts: list[Callable[[], object]] = [
        lambda: titles(database),
        lambda: database.writer.run_blocking(create("refused")),
        lambda: find(database),
        lambda: _write(database, "refused"),
    ]
    with psycopg.connect(url) as other, monkeypatch.context() as patched:
        patched.setattr(pooled_connection, "START_SECONDS", 0.1)
        other.execute("SELECT 1")
        began = time.monotonic()
        for attempt in attempts:
            with pytest.raises(StoreOverloaded, match="the pooler had no free connection"):
                attempt()
        seconds = time.monotonic() - began

    assert seconds < ANSWER_SECONDS_MAX
    database.writer.run_blocking(create("after"))
    find(database)
    assert titles(database)[:2] == ["after", "before"]


def _write(database: Database, title: str) -> None:
    with database.write() as tx:
        topics.create_topic(tx, title)


def test_a_process_whose_connections_are_all_in_use_is_overloaded(
    server_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert engine.POOL_SECONDS <= 5, "a client should get its 503 within seconds"
    monkeypatch.setattr(engine, "POOL_SECONDS", 0.1)
    with closing(open_database(server_url, connections=5)) as database:
        with ExitStack() as busy:
            for _ in range(5 - KEPT_CONNECTIONS):
                busy.enter_context(database.read())

            with pytest.raises(StoreOverloaded, match=r"raise hub\.database_connections"):
                titles(database)

        titles(database)


def test_a_role_that_may_not_connect_again_is_overloaded(server_url: str) -> None:
    with psycopg.connect(server_url, autocommit=True) as owner:
        owner.execute("CREATE ROLE few LOGIN CONNECTION LIMIT 1; GRANT SELECT ON ALL TABLES IN SCHEMA public TO few")
        few = server_url.replace("postgres@", "few@")
        try:
            with (
                closing(open_database(few)) as database,
                psycopg.connect(few),
                pytest.raises(StoreOverloaded, match=r"too many connections.*lower hub.workers"),
            ):
                titles(database)
        finally:
            owner.execute("DROP OWNED BY few; DROP ROLE few")


def test_the_setting_counts_the_same_connections_as_the_default() -> None:
    assert HubSettings().database_connections == POSTGRES_CONNECTIONS + KEPT_CONNECTIONS


# A pooler that restarts.


def test_connections_that_the_pooler_closed_are_replaced_before_they_are_used(
    servers: Servers, server_url: str
) -> None:
    with Pgbouncer(servers.postgres) as pooler, closing(open_database(pooler.url(server_url))) as database:
        database.writer.run_blocking(create("one"))
        find(database)
        titles(database)
        pooler.stop()
        pooler.start()

        titles(database)
        database.writer.run_blocking(create("two"))
        find(database)
