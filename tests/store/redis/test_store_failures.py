"""A Redis that loses results, fills up, stops, freezes, or contains foreign data."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import closing

import pytest
from tests.servers.redis import RedisServer, prefix_of
from tests.servers.tcp_proxy import TcpProxy

from onceward import errors
from onceward.core.claim import Ref, Status, Verb, committed
from onceward.core.outcome import Outcome
from onceward.store import BatchFailed
from onceward.store.redis import RedisStore
from onceward.testing.caller import SCOPE, begin, entry_of, move


@pytest.fixture
def url(redis_server: RedisServer) -> str:
    return redis_server.fresh_url()


@pytest.fixture
def store(url: str) -> Iterator[RedisStore]:
    with closing(RedisStore(url)) as store:
        yield store


@pytest.fixture(scope="module")
def own_server() -> Iterator[RedisServer]:
    """One to stop, freeze and reconfigure."""
    with RedisServer() as server:
        yield server


def scripts_run(server: RedisServer) -> int:
    calls: int = server.execute("INFO", "commandstats").get("cmdstat_evalsha", {}).get("calls", 0)
    return calls


def test_a_write_with_a_lost_result_is_not_resent_and_recognises_itself_when_repeated(
    proxied: RedisStore, proxy: TcpProxy, redis_server: RedisServer
) -> None:
    write = begin()
    before = scripts_run(redis_server)
    proxy.lose_replies()
    with pytest.raises(errors.StoreUnavailable):
        proxied.commit([write])
    proxy.heal()
    assert scripts_run(redis_server) == before + 1

    entry = entry_of(proxied.commit([write])[0], applied=False)
    settle = move(Verb.SETTLE, entry.version)
    proxy.lose_replies()
    with pytest.raises(errors.StoreUnavailable):
        proxied.commit([settle])
    proxy.heal()

    assert entry.write_id == write.write_id
    assert committed(settle, proxied.commit([settle])[0])


def test_a_connection_that_the_server_closed_while_idle_fails_no_call(
    store: RedisStore, redis_server: RedisServer
) -> None:
    store.commit([begin()])
    redis_server.execute("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")

    assert not store.commit([begin()])[0].applied


def test_a_claim_is_settled_after_the_server_closed_the_idle_connection(
    store: RedisStore, redis_server: RedisServer
) -> None:
    """The claim cache is dropped with the connection, and the settle must work without it."""
    held = entry_of(store.commit([begin()])[0], applied=True)
    redis_server.execute("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")

    settled = store.commit([move(Verb.SETTLE, held.version)])[0]

    assert store.read([held.ref]).entries == (entry_of(settled, applied=True),)


def test_an_interrupted_call_leaves_no_result_for_the_next_one(own_server: RedisServer) -> None:
    with closing(RedisStore(own_server.fresh_url())) as store:
        store.read([])
        own_server.freeze()
        before = signal.signal(signal.SIGALRM, signal.default_int_handler)
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        try:
            with pytest.raises(KeyboardInterrupt):
                store.commit([begin("interrupted")])
        finally:
            signal.signal(signal.SIGALRM, before)
            own_server.thaw()

        assert entry_of(store.commit([begin("next")])[0], applied=True).key == "next"


def test_foreign_data_under_one_of_our_names_fails_only_its_own_write(
    url: str, store: RedisStore, redis_server: RedisServer
) -> None:
    store.commit([begin("foreign")])
    (name,) = redis_server.execute("KEYS", f"{prefix_of(url)}:*:e:*")
    redis_server.execute("SET", name, "something else")
    neighbour = begin("neighbour")

    with pytest.raises(BatchFailed):
        store.commit([begin("foreign"), neighbour])
    with pytest.raises(errors.WriteRefused):
        store.commit([begin("foreign")])
    assert entry_of(store.commit([neighbour])[0], applied=False).write_id == neighbour.write_id


def test_a_server_without_memory_refuses_whole_writes_and_still_serves_reads(own_server: RedisServer) -> None:
    with closing(RedisStore(own_server.fresh_url())) as store:
        held = entry_of(store.commit([begin()])[0], applied=True)
        settle, other = move(Verb.SETTLE, held.version, outcome=Outcome(body=b"x" * 60_000)), begin("other")
        own_server.execute("CONFIG", "SET", "maxmemory", 1)
        with pytest.raises(errors.StoreUnavailable, match="maxmemory"):
            store.commit([other])
        assert store.read([held.ref, Ref(SCOPE, "other")]).entries == (held, None)
        assert store.scan(None, Status.COMPLETED, "", 10).entries == ()
        own_server.execute("CONFIG", "SET", "maxmemory", 0)

        assert [result.applied for result in store.commit([settle, other])] == [True, True]


def test_a_stopped_server_is_unavailable_and_comes_back_with_its_data(own_server: RedisServer) -> None:
    with closing(RedisStore(own_server.fresh_url())) as store:
        held = entry_of(store.commit([begin(repeatable=False)])[0], applied=True)
        own_server.stop()
        try:
            for _ in range(2):
                with pytest.raises(errors.StoreUnavailable):
                    store.commit([begin("other")])
        finally:
            own_server.start()

        assert store.read([held.ref]).entries == (held,)
        assert store.commit([move(Verb.SETTLE, held.version)])[0].applied


def test_a_frozen_server_is_unavailable_within_six_seconds(own_server: RedisServer) -> None:
    with closing(RedisStore(own_server.fresh_url())) as store:
        store.read([])
        write = begin()
        started = time.monotonic()
        own_server.freeze()
        try:
            with pytest.raises(errors.StoreUnavailable):
                store.commit([write])
        finally:
            own_server.thaw()

        assert time.monotonic() - started < 6
        assert entry_of(store.commit([write])[0], applied=False).write_id == write.write_id
