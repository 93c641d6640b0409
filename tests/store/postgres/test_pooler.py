"""A pooler in transaction mode in front of the store: the store detects it, and keeps no state in a session."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing

import psycopg
import pytest
from psycopg import sql
from tests.backends import Servers
from tests.servers.pgbouncer import Pgbouncer
from tests.store.postgres.test_store import round_trips
from tests.waiting import SECONDS_MAX, until

from onceward.core.claim import Ref, Verb
from onceward.errors import InvalidStoreUrl, StoreOverloaded
from onceward.store import Schema
from onceward.store.postgres import PostgresStore, upgrade
from onceward.store.postgres.driver import TimeoutConnection
from onceward.store.postgres.pooler import Pooler, is_pooled, split_pooler
from onceward.testing.caller import SCOPE, begin, entry_of, move

# The settings that the store changes, as other clients of the same session would see them.
_SETTINGS = """
    SELECT name, setting FROM pg_settings WHERE name IN ('statement_timeout', 'lock_timeout', 'jit', 'plan_cache_mode',
        'enable_seqscan', 'enable_tidscan', 'enable_hashjoin', 'enable_mergejoin', 'synchronous_commit',
        'default_transaction_isolation')
"""
# Those that a client has set for the whole session.
_LEAKED = f"{_SETTINGS} AND source = 'session'"

_ADVISORY_LOCKS = """
    SELECT count(*) FROM pg_locks
    WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""


@pytest.fixture(scope="module")
def narrow(servers: Servers) -> Iterator[Pgbouncer]:
    """A pooler with one connection to each database, so that all clients share a session."""
    with Pgbouncer(servers.postgres, pool_size=1) as pooler:
        yield pooler


@pytest.fixture
def url(servers: Servers, narrow: Pgbouncer) -> str:
    return narrow.url(servers.emptied_database())


def driver_of(store: PostgresStore) -> TimeoutConnection:
    store.read([])
    assert store.connection.driver is not None
    return store.connection.driver


# Detection.


@pytest.mark.parametrize(
    ("url", "rest", "pooler"),
    [
        ("postgresql://a@h/b", "postgresql://a@h/b", Pooler.AUTOMATIC),
        ("postgresql://a@h/b?pooler=transaction", "postgresql://a@h/b", Pooler.TRANSACTION),
        ("postgresql://a@h/b?pooler=session&sslmode=disable", "postgresql://a@h/b?sslmode=disable", Pooler.SESSION),
        ("postgresql://a@h/b?sslmode=disable&pooler=session", "postgresql://a@h/b?sslmode=disable", Pooler.SESSION),
        ("postgresql://a@h/b?sslmode=a&pooler=session&x=b", "postgresql://a@h/b?sslmode=a&x=b", Pooler.SESSION),
        ("postgresql://a:pooler=x@h/b", "postgresql://a:pooler=x@h/b", Pooler.AUTOMATIC),
    ],
)
def test_the_parameter_is_taken_out_of_the_url(url: str, rest: str, pooler: Pooler) -> None:
    assert split_pooler(url) == (rest, pooler)


@pytest.mark.parametrize("value", ["", "statement", "Transaction"])
def test_an_unknown_value_of_the_parameter_is_refused(value: str) -> None:
    with pytest.raises(InvalidStoreUrl, match="must be transaction or session"):
        PostgresStore(f"postgresql://a@h/b?pooler={value}")


def test_the_parameter_decides_before_the_process_ids() -> None:
    found = {pooler: [is_pooled(pooler, 1, pid) for pid in (1, 2)] for pooler in Pooler}

    assert found == {
        Pooler.AUTOMATIC: [False, True],
        Pooler.TRANSACTION: [True, True],
        Pooler.SESSION: [False, False],
    }


def test_a_pooler_is_detected_and_a_server_is_not_taken_for_one(servers: Servers, url: str) -> None:
    with closing(PostgresStore(url)) as pooled, closing(PostgresStore(servers.emptied_database())) as direct:
        assert driver_of(pooled).is_pooled
        assert not driver_of(direct).is_pooled


def test_a_pooler_in_session_mode_keeps_the_session_if_the_url_says_so(servers: Servers) -> None:
    with (
        Pgbouncer(servers.postgres, pool_mode="session") as pooler,
        closing(PostgresStore(pooler.url(servers.emptied_database()) + "?pooler=session")) as store,
    ):
        for number in range(3):
            assert store.commit([begin(f"key-{number}")])[0].applied
        prepared = driver_of(store).execute("SELECT count(*) FROM pg_prepared_statements").fetchone()

    assert prepared is not None
    assert prepared[0] > 0


# Settings.


def test_settings_hold_for_each_statement_and_other_clients_never_see_them(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as other, closing(PostgresStore(url)) as store:
        entry = entry_of(store.commit([begin()])[0], applied=True)
        store.commit([move(Verb.SETTLE, entry.version)])
        within: dict[str, str] = dict(store.connection.query(_SETTINGS, ()))
        leaked = other.execute(_LEAKED.encode()).fetchall()

    assert leaked == []
    assert within["lock_timeout"] == "2000"
    assert within["statement_timeout"] == "4000"
    assert within["jit"] == "off"


def test_settings_that_another_client_left_behind_do_not_matter(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as other, closing(PostgresStore(url)) as store:
        store.read([])
        try:
            other.execute("SET lock_timeout = '1ms'; SET synchronous_commit = off")
            other.execute("SET default_transaction_isolation = 'serializable'")
            found = store.connection.query(
                "SELECT current_setting('lock_timeout'), current_setting('synchronous_commit'),"
                " current_setting('transaction_isolation')",
                (),
            )
        finally:
            other.execute("DISCARD ALL")

    assert found == [("2s", "on", "read committed")]


def test_a_batch_behind_a_pooler_is_one_round_trip(url: str) -> None:
    with closing(PostgresStore(url)) as store:
        connection = driver_of(store)

        assert round_trips(connection, lambda: store.commit([begin("a"), begin("b")])) == 1
        assert round_trips(connection, lambda: store.read([Ref(SCOPE, "a")])) == 1


# Several clients.


def test_more_stores_than_connections_open_an_empty_database_and_each_key_is_claimed_once(servers: Servers) -> None:
    url = servers.pgbouncer.url(servers.postgres.create_database())
    begun = threading.Barrier(6)

    def claim(number: int) -> tuple[bool, bool, bool]:
        with closing(PostgresStore(url)) as store:
            begun.wait(SECONDS_MAX)
            same, own = store.commit([begin("same"), begin(f"own-{number}")])
            again = [store.commit([begin(f"more-{turn}")])[0].applied for turn in range(10)]
            return same.applied, own.applied, any(again)

    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(claim, range(6)))

    assert [same for same, _, _ in found].count(True) == 1
    assert all(own for _, own, _ in found)


def test_a_store_that_waited_for_the_tables_of_another_one_finds_them(servers: Servers) -> None:
    url = servers.postgres.create_database()
    with ExitStack() as stack:
        creator, late = (stack.enter_context(TimeoutConnection.connect(url, autocommit=True)) for _ in range(2))
        watcher = stack.enter_context(psycopg.connect(url, autocommit=True))

        def late_waits() -> bool:
            waiting = "SELECT wait_event_type FROM pg_stat_activity WHERE pid = %s"
            return watcher.execute(waiting, (late.info.backend_pid,)).fetchone() == ("Lock",)

        with creator.transaction():
            creator.execute("SELECT pg_advisory_xact_lock(%s, 1)", (upgrade._LOCKS,))
            waiting = threading.Thread(target=upgrade.ensure_tables, args=(late,))
            waiting.start()
            until(late_waits, "it does not wait")
            upgrade._upgrade(creator, Schema(), complete=False)
        waiting.join(SECONDS_MAX)

        assert late.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
        assert not late.closed
        assert upgrade._schema(late) == upgrade._schema(creator)


def test_a_failed_creation_leaves_no_lock(servers: Servers) -> None:
    """A session lock would stay with the pooler's connection, and block the creation of tables forever."""
    url = servers.postgres.create_database()
    name = sql.Identifier(url.rpartition("/")[2])
    with Pgbouncer(servers.postgres, pool_size=1) as pooler, psycopg.connect(url, autocommit=True) as owner:
        owner.execute(sql.SQL("ALTER DATABASE {} SET default_transaction_read_only = on").format(name))
        with closing(PostgresStore(pooler.url(url))) as store, pytest.raises(Exception, match="read-only"):
            store.read([])

        assert owner.execute(_ADVISORY_LOCKS).fetchone() == (0,)


# A pooler that has no connection, or restarts.


def test_a_pooler_that_accepts_no_more_clients_is_reported_as_overloaded(servers: Servers) -> None:
    with (
        Pgbouncer(servers.postgres, clients=2) as pooler,
        closing(PostgresStore(pooler.url(servers.emptied_database()))) as store,
        ExitStack() as others,
    ):
        others.enter_context(psycopg.connect(_other(pooler, servers)))
        others.enter_context(psycopg.connect(_other(pooler, servers)))
        with pytest.raises(StoreOverloaded, match="no more connections allowed"):
            store.read([])
        others.close()

        assert until(lambda: store.read([Ref(SCOPE, "k")]).entries == (None,))


def _other(pooler: Pgbouncer, servers: Servers) -> str:
    return pooler.url(servers.postgres.url())


def test_a_restarted_pooler_costs_no_error(servers: Servers) -> None:
    with (
        Pgbouncer(servers.postgres) as pooler,
        closing(PostgresStore(pooler.url(servers.emptied_database()))) as store,
    ):
        assert store.commit([begin()])[0].applied
        pooler.stop()
        pooler.start()

        assert store.read([Ref(SCOPE, begin().key)]).entries[0] is not None
