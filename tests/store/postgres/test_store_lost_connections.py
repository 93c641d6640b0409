"""Connections to PostgreSQL that the server drops while they are idle, and results that are lost."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing

import psycopg
import pytest
from tests.backends import Servers
from tests.servers.postgres import PostgresServer
from tests.servers.tcp_proxy import TcpProxy
from tests.waiting import until

from onceward import errors
from onceward.core.claim import Entry, Status
from onceward.ledger import Ledger
from onceward.store.postgres import PostgresStore
from onceward.testing import PinnedClock
from onceward.testing.caller import append, begin, entry_of

_KILL = (
    "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
    " WHERE datname = current_database() AND pid <> pg_backend_pid() AND application_name = 'onceward'"
)


@pytest.fixture
def url(servers: Servers) -> str:
    return servers.emptied_database()


@pytest.fixture
def store(url: str, clock: PinnedClock) -> Iterator[PostgresStore]:
    with closing(PostgresStore(url, clock)) as store:
        yield store


def drop_connections(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as other:
        assert other.execute(_KILL).fetchall(), "found no connection to drop"


READS: dict[str, Callable[[PostgresStore, Entry], object]] = {
    "read": lambda store, held: store.read([held.ref]).entries[0] is not None,
    "scan": lambda store, held: [entry.key for entry in store.scan(None, None, "", 10).entries] == [held.key],
    "chunks": lambda store, held: store.chunks(held.ref, held.version, 0, 10) == [b"piece"],
    "purge": lambda store, _: store.purge(10) == 0,
}


@pytest.mark.parametrize("name", READS)
def test_a_read_on_a_dropped_connection_is_repeated_on_a_new_one(store: PostgresStore, url: str, name: str) -> None:
    held = entry_of(store.commit([begin("kept")])[0], applied=True)
    store.commit([append(held.version, 1, b"piece", key="kept")])
    drop_connections(url)

    assert READS[name](store, held)


def test_a_ledger_reads_runs_and_replays_at_once_after_its_connection_was_dropped(url: str) -> None:
    ran: list[str] = []
    with closing(Ledger(PostgresStore(url))) as ledger:
        ledger.blocking.run("first", lambda: ran.append("first"), effect="irreversible")
        drop_connections(url)
        entry = ledger.blocking.read("default", "nothing")
        drop_connections(url)
        ledger.blocking.run("second", lambda: ran.append("second"), effect="irreversible")
        drop_connections(url)
        ledger.blocking.run("second", lambda: ran.append("twice"), effect="irreversible")

    assert entry is None
    assert ran == ["first", "second"]


def test_a_settle_whose_result_was_lost_is_recognised_and_not_repeated(
    url: str, postgres_server: PostgresServer
) -> None:
    ran: list[str] = []
    with (
        TcpProxy(postgres_server.port) as proxy,
        psycopg.connect(url, autocommit=True) as other,
        closing(Ledger(PostgresStore(url.replace(str(postgres_server.port), str(proxy.port))))) as ledger,
    ):

        def effect() -> str:
            ran.append("ran")
            proxy.lose_replies()
            return "paid"

        def heal_when_settled() -> None:
            query = "SELECT 1 FROM platform_idempotency_keys WHERE status = 'completed'"
            until(lambda: other.execute(query).fetchone() is not None, "the settle never arrived")
            proxy.heal()

        healing = threading.Thread(target=heal_when_settled)
        healing.start()
        first = ledger.blocking.run("payment", effect, effect="irreversible")
        healing.join()
        again = ledger.blocking.run("payment", effect, effect="irreversible")
        (entry,) = ledger.blocking.scan().entries

    assert (first, again, ran) == ("paid", "paid", ["ran"])
    assert (entry.status, entry.attempt) == (Status.COMPLETED, 1)


def test_a_server_that_is_down_is_unavailable_at_once() -> None:
    with closing(PostgresStore("postgresql://postgres@127.0.0.1:9/none")) as store:
        with pytest.raises(errors.StoreUnavailable) as failure:
            store.read([])
        assert failure.value.retryable
