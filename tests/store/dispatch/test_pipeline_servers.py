"""Batches in flight on real servers: replies that are lost, scripts that are forgotten, batches that no network takes at once."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from typing import cast

import psycopg
import pytest
from tests.backends import Servers
from tests.servers.redis import RedisServer
from tests.servers.tcp_proxy import TcpProxy
from tests.store.dispatch.pipelined_store import start
from tests.waiting import soon, until

from onceward import errors
from onceward.core.claim import Ref, Verb, Write, WriteResult
from onceward.core.outcome import Outcome
from onceward.store import BatchFailed, Store
from onceward.store.dispatch.batcher import Batcher
from onceward.store.dispatch.inflight import LOOP_GRACE_SECONDS, SentBatch
from onceward.store.postgres import PostgresStore
from onceward.store.redis import RedisStore
from onceward.store.redis.connection import DriverConnection, RedisConnection, parse_target
from onceward.store.redis.resp import RedisPipeline
from onceward.testing.caller import SCOPE, begin, entry_of, move

# Nearly as much as a batch may hold.
BODIES = 60
BODY = b"x" * 64_000


@pytest.fixture
def url(redis_server: RedisServer) -> str:
    return redis_server.fresh_url()


@pytest.fixture
def redis(url: str) -> Iterator[RedisStore]:
    with closing(RedisStore(url)) as store:
        store.read([])
        yield store


@pytest.fixture
def postgres(servers: Servers) -> Iterator[PostgresStore]:
    with closing(PostgresStore(servers.emptied_database())) as store:
        store.read([])
        yield store


@pytest.fixture(params=["redis", "postgres"])
def either(request: pytest.FixtureRequest) -> RedisStore | PostgresStore:
    store: RedisStore | PostgresStore = request.getfixturevalue(request.param)
    return store


def require_sent(sent_batch: SentBatch | None) -> SentBatch:
    assert sent_batch is not None, "nothing was sent"
    return sent_batch


def narrow(store: RedisStore | PostgresStore) -> None:
    """Shrink the connection's send buffer."""
    sent_batch = require_sent(start(store, begin("narrow")))
    with socket.socket(fileno=os.dup(sent_batch.fileno())) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    sent_batch.finish()


def on_loop(store: Store, main: Callable[[Batcher], Awaitable[None]]) -> None:
    async def awaited() -> None:
        batcher = Batcher(store, lambda _: False)
        try:
            await asyncio.wait_for(main(batcher), 30)
        finally:
            await asyncio.to_thread(batcher.close)

    asyncio.run(awaited())


def is_late(batcher: Batcher) -> bool:
    in_flight = batcher._pipeline._in_flight
    return in_flight is not None and time.monotonic() > in_flight.sent_at + LOOP_GRACE_SECONDS


async def written(batcher: Batcher, write: Write) -> WriteResult:
    return await batcher.write(write)


def test_nothing_is_pipelined_before_the_connection_is_open(url: str, servers: Servers) -> None:
    with closing(RedisStore(url)) as redis, closing(PostgresStore(servers.emptied_database())) as postgres:
        assert start(redis, begin()) is None
        assert start(postgres, begin()) is None


def test_a_batch_that_does_not_fit_the_send_buffer_is_sent_by_a_blocking_call(
    either: RedisStore | PostgresStore,
) -> None:
    held = either.commit([begin(f"k{n}") for n in range(BODIES)])
    settles = [
        move(Verb.SETTLE, entry_of(result, applied=True).version, f"k{n}", outcome=Outcome(200, "[]", BODY))
        for n, result in enumerate(held)
    ]

    narrow(either)
    sent_batch = require_sent(start(either, *settles))
    assert sent_batch.must_block
    results = sent_batch.finish()

    assert all(result.applied for result in results)
    entries = either.read([Ref(SCOPE, f"k{n}") for n in range(BODIES)]).entries
    assert [entry.outcome.body for entry in entries if entry is not None] == [BODY] * BODIES


def test_large_batches_of_a_loop_arrive_completely(either: RedisStore | PostgresStore) -> None:
    narrow(either)

    async def main(batcher: Batcher) -> None:
        held = await asyncio.gather(*(written(batcher, begin(f"k{n}")) for n in range(BODIES)))
        results = await asyncio.gather(
            *(
                written(
                    batcher, move(Verb.SETTLE, entry_of(one, applied=True).version, f"k{n}", outcome=Outcome(body=BODY))
                )
                for n, one in enumerate(held)
            )
        )
        assert all(result.applied for result in results)

    on_loop(either, main)


def test_a_script_that_the_server_forgot_is_loaded_and_unprocessed_writes_are_sent_again(
    redis: RedisStore, redis_server: RedisServer
) -> None:
    redis.commit([begin("before")])
    redis_server.execute("SCRIPT", "FLUSH")

    sent_batch = require_sent(start(redis, begin("a"), begin("b")))
    while not sent_batch.poll():
        pass

    assert sent_batch.must_block
    assert [result.applied for result in sent_batch.finish()] == [True, True]
    assert require_sent(start(redis, begin("c"))).finish()[0].applied


def test_a_loop_does_not_notice_that_the_server_forgot_the_script(redis: RedisStore, redis_server: RedisServer) -> None:
    async def main(batcher: Batcher) -> None:
        assert (await written(batcher, begin("a"))).applied
        redis_server.execute("SCRIPT", "FLUSH")
        results = await asyncio.gather(*(written(batcher, begin(f"k{n}")) for n in range(20)))
        assert all(result.applied for result in results)

    on_loop(redis, main)


def test_a_connection_that_the_server_closed_while_idle_fails_no_caller_of_a_loop(
    redis: RedisStore, redis_server: RedisServer
) -> None:
    async def main(batcher: Batcher) -> None:
        assert (await written(batcher, begin("a"))).applied
        redis_server.execute("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        assert (await written(batcher, begin("b"))).applied

    on_loop(redis, main)


def test_a_result_lost_in_flight_is_an_error_and_the_repeated_write_recognises_itself(
    proxied: RedisStore, proxy: TcpProxy
) -> None:
    async def main(batcher: Batcher) -> None:
        write = begin()
        proxy.lose_replies()
        with pytest.raises(errors.StoreUnavailable):
            await written(batcher, write)
        proxy.heal()
        entry = entry_of(await written(batcher, write), applied=False)
        assert entry.write_id == write.write_id
        settle = move(Verb.SETTLE, entry.version)
        proxy.lose_replies()
        with pytest.raises(errors.StoreUnavailable):
            await written(batcher, settle)
        proxy.heal()
        assert entry_of(await written(batcher, settle), applied=False).write_id == settle.write_id

    on_loop(proxied, main)


def test_a_frozen_server_is_given_up_by_the_thread_when_others_need_the_store() -> None:
    with RedisServer() as own_server:

        async def main(batcher: Batcher) -> None:
            own_server.freeze()
            try:
                first = asyncio.ensure_future(written(batcher, begin("first")))
                await soon(lambda: is_late(batcher))
                began = time.monotonic()
                second = asyncio.ensure_future(written(batcher, begin("second")))
                with pytest.raises(errors.StoreUnavailable):
                    await first
                assert time.monotonic() - began < 3
            finally:
                own_server.thaw()
            # Sent on a new connection, whichever way the freeze ended for it.
            await asyncio.gather(second, return_exceptions=True)
            assert (await written(batcher, begin("third"))).applied

        with closing(RedisStore(f"{own_server.fresh_url()}&socket_timeout=0.5")) as store:
            store.read([])
            on_loop(store, main)


def test_a_refused_command_fails_only_its_own_write(redis: RedisStore, redis_server: RedisServer) -> None:
    async def main(batcher: Batcher) -> None:
        await written(batcher, begin("foreign"))
        (name,) = redis_server.execute("KEYS", "*:e:*foreign*")[-1:]
        redis_server.execute("SET", name, "something else")
        results = await asyncio.gather(
            written(batcher, begin("foreign")), written(batcher, begin("neighbour")), return_exceptions=True
        )
        assert isinstance(results[0], errors.WriteRefused)
        assert isinstance(results[1], WriteResult)
        assert results[1].entry is not None

    on_loop(redis, main)


@pytest.mark.parametrize("key", ["lone \ud800 surrogate", "with \x00 in it"])
def test_unstorable_text_fails_only_its_own_write(either: Store, key: str) -> None:
    """Each of the two stores accepts some of these texts, and none stores another text instead."""

    async def main(batcher: Batcher) -> None:
        bad, good = await asyncio.gather(
            written(batcher, begin(key)), written(batcher, begin("good")), return_exceptions=True
        )
        assert isinstance(good, WriteResult)
        assert good.applied
        assert isinstance(bad, errors.WriteRefused) or (
            isinstance(bad, WriteResult) and entry_of(bad, applied=True).key == key
        )

    on_loop(either, main)


def test_a_session_that_ends_in_flight_is_an_error_and_the_next_write_opens_another(
    postgres: PostgresStore, servers: Servers
) -> None:
    assert postgres.connection.driver is not None
    pid = postgres.connection.driver.info.backend_pid

    async def main(batcher: Batcher) -> None:
        entry_of(await written(batcher, begin("k")), applied=True)
        with psycopg.connect(servers.emptied_database(), autocommit=True) as other:
            other.execute("SELECT pg_terminate_backend(%s, 5000)", (pid,))
        with pytest.raises(errors.StoreUnavailable):
            await written(batcher, begin("lost"))
        assert (await written(batcher, begin("next"))).applied

    on_loop(postgres, main)


def test_an_interrupt_after_sending_leaves_no_result_for_the_next_batch(
    redis: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("onceward.store.redis.store._RedisSentBatch", interrupt)
        with pytest.raises(KeyboardInterrupt):
            start(redis, begin("interrupted"))

    assert redis._connection is None, "its answer is still to come"
    assert redis.commit([begin("interrupted")])[0].entry is not None


def test_a_batch_that_is_given_up_leaves_no_result_for_the_next_batch(either: RedisStore | PostgresStore) -> None:
    require_sent(start(either, begin("given up"))).give_up()

    assert entry_of(either.commit([begin("next")])[0], applied=True).key == "next"


def test_a_failed_batch_closes_its_connection(redis: RedisStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(_: RedisPipeline) -> None:
        raise ConnectionResetError("gone")

    sent_batch = require_sent(start(redis, begin("k")))
    monkeypatch.setattr(RedisPipeline, "replies", lost)
    with pytest.raises(errors.StoreUnavailable, match="gone"):
        sent_batch.finish()

    assert redis._connection is None


def test_irreversible_claims_are_not_pipelined_to_a_volatile_server() -> None:
    with RedisServer(durable=False) as forgetful, closing(RedisStore(forgetful.fresh_url())) as store:
        store.read([])

        assert start(store, begin("irreversible", repeatable=False)) is None
        require_sent(start(store, begin("repeatable", repeatable=True))).finish()


@pytest.mark.parametrize("scheme", ["redis", "rediss"])
def test_only_a_plain_connection_to_a_single_server_is_pipelined(scheme: str) -> None:
    connection = RedisConnection(parse_target(f"{scheme}://localhost"), "", lambda _: None)
    connection._connections = {("localhost", 1): cast("DriverConnection", None)}
    assert not connection.can_pipeline(durable=False), "nobody said that it is alone"
    connection._is_single_server = True
    assert connection.can_pipeline(durable=False) == (scheme == "redis")
    connection._connections[("localhost", 2)] = cast("DriverConnection", None)
    assert not connection.can_pipeline(durable=False)


def test_a_server_error_during_a_batch_is_raised_when_it_completes(servers: Servers) -> None:
    url = servers.postgres.create_database()
    with closing(PostgresStore(url)) as store:
        store.read([])
        with psycopg.connect(url, autocommit=True) as other:
            other.execute("DROP FUNCTION onceward_commit_v7")
        sent_batch = require_sent(start(store, begin("k")))
        while not sent_batch.poll():
            pass
        with pytest.raises(errors.StoreUnavailable):
            sent_batch.finish()
        assert store.connection.driver is None


def test_a_batch_that_postgres_cannot_encode_leaves_the_connection_unchanged(postgres: PostgresStore) -> None:
    with pytest.raises(BatchFailed):
        start(postgres, begin("with \x00 in it"))

    assert postgres.read([Ref(SCOPE, "k")]).entries == (None,)
    assert postgres.commit([begin("k")])[0].applied


def test_a_begin_that_must_be_repeated_is_left_to_a_blocking_call(
    postgres: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = postgres.connection.rows
    sent_batch = require_sent(start(postgres, begin("k")))
    with monkeypatch.context() as patched:
        # As for an entry that was purged between the read and the lock.
        patched.setattr(postgres.connection, "rows", lambda asked: rows(asked)[1:])
        while not sent_batch.poll():
            pass
    assert sent_batch.must_block
    assert not sent_batch.received

    assert sent_batch.finish()[0].entry is not None


def test_the_timeout_counts_from_the_sending(postgres: PostgresStore) -> None:
    assert postgres.connection.driver is not None
    pid = postgres.connection.driver.info.backend_pid
    postgres.connection.driver.seconds = 2.0
    os.kill(pid, signal.SIGSTOP)
    try:
        sent_batch = require_sent(start(postgres, begin("k")))
        sent_at = time.monotonic()
        until(lambda: time.monotonic() > sent_at + 2.0)
        began = time.monotonic()
        with pytest.raises(errors.StoreUnavailable, match="does not respond"):
            sent_batch.finish()
        assert time.monotonic() - began < 1.8
    finally:
        os.kill(pid, signal.SIGCONT)


def test_without_permission_to_ask_for_replicas_nothing_is_pipelined(redis_server: RedisServer) -> None:
    redis_server.execute("ACL", "SETUSER", "shy", "on", ">secret", "~*", "+@all", "-info")
    try:
        url = redis_server.fresh_url().replace("redis://", "redis://shy:secret@")
        with closing(RedisStore(f"{url}&volatile=ok")) as store:
            store.read([])
            assert start(store, begin("k")) is None
            assert store.commit([begin("k")])[0].applied
    finally:
        redis_server.execute("ACL", "DELUSER", "shy")
