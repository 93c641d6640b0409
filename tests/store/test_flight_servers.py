"""Flights on real servers: answers that are lost, scripts that are forgotten, batches that no network takes at once."""

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
from tests.store.flying import start
from tests.store.tap import Tap
from tests.waiting import soon, until

from onceward import errors
from onceward.core.claim import Answer, Ref, Verb, Write
from onceward.core.outcome import Outcome
from onceward.store import BatchFailed, Store
from onceward.store.batch import Batcher
from onceward.store.flight import PATROL_SECONDS, Flight
from onceward.store.postgres import PostgresStore
from onceward.store.redis import RedisStore
from onceward.store.redis_parcel import Parcel
from onceward.store.redis_wire import Line, Wire, parse_target
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


def departed(flight: Flight | None) -> Flight:
    assert flight is not None, "nothing was sent"
    return flight


def narrow(store: RedisStore | PostgresStore) -> None:
    """Let its connection hold but little of what is sent and not read yet."""
    flight = departed(start(store, begin("narrow")))
    with socket.socket(fileno=os.dup(flight.fileno())) as line:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    flight.finish()


def on_loop(store: Store, main: Callable[[Batcher], Awaitable[None]]) -> None:
    async def awaited() -> None:
        line = Batcher(store, lambda _: False)
        try:
            await asyncio.wait_for(main(line), 30)
        finally:
            await asyncio.to_thread(line.close)

    asyncio.run(awaited())


def is_late(line: Batcher) -> bool:
    journey = line._flights._journey
    return journey is not None and time.monotonic() > journey.since + PATROL_SECONDS


async def written(line: Batcher, write: Write) -> Answer:
    return await line.write(write)


def test_nothing_flies_before_it_is_connected(url: str, servers: Servers) -> None:
    with closing(RedisStore(url)) as redis, closing(PostgresStore(servers.emptied_database())) as postgres:
        assert start(redis, begin()) is None
        assert start(postgres, begin()) is None


def test_what_the_network_does_not_take_at_once_is_sent_by_one_who_can_wait(
    either: RedisStore | PostgresStore,
) -> None:
    held = either.commit([begin(f"k{n}") for n in range(BODIES)])
    settles = [
        move(Verb.SETTLE, entry_of(answer, applied=True).version, f"k{n}", outcome=Outcome(200, "[]", BODY))
        for n, answer in enumerate(held)
    ]

    narrow(either)
    flight = departed(start(either, *settles))
    assert flight.grounded
    answers = flight.finish()

    assert all(answer.applied for answer in answers)
    entries = either.read([Ref(SCOPE, f"k{n}") for n in range(BODIES)]).entries
    assert [entry.outcome.body for entry in entries if entry is not None] == [BODY] * BODIES


def test_large_batches_of_a_loop_arrive_whole(either: RedisStore | PostgresStore) -> None:
    narrow(either)

    async def main(line: Batcher) -> None:
        held = await asyncio.gather(*(written(line, begin(f"k{n}")) for n in range(BODIES)))
        answers = await asyncio.gather(
            *(
                written(
                    line, move(Verb.SETTLE, entry_of(one, applied=True).version, f"k{n}", outcome=Outcome(body=BODY))
                )
                for n, one in enumerate(held)
            )
        )
        assert all(answer.applied for answer in answers)

    on_loop(either, main)


def test_a_script_that_the_server_forgot_is_loaded_and_what_was_not_run_is_sent_again(
    redis: RedisStore, redis_server: RedisServer
) -> None:
    redis.commit([begin("before")])
    redis_server.ask("SCRIPT", "FLUSH")

    flight = departed(start(redis, begin("a"), begin("b")))
    while not flight.poll():
        pass

    assert flight.grounded
    assert [answer.applied for answer in flight.finish()] == [True, True]
    assert departed(start(redis, begin("c"))).finish()[0].applied


def test_a_loop_does_not_notice_that_the_server_forgot_the_script(redis: RedisStore, redis_server: RedisServer) -> None:
    async def main(line: Batcher) -> None:
        assert (await written(line, begin("a"))).applied
        redis_server.ask("SCRIPT", "FLUSH")
        answers = await asyncio.gather(*(written(line, begin(f"k{n}")) for n in range(20)))
        assert all(answer.applied for answer in answers)

    on_loop(redis, main)


def test_a_connection_that_the_server_closed_meanwhile_costs_no_caller_of_a_loop_anything(
    redis: RedisStore, redis_server: RedisServer
) -> None:
    async def main(line: Batcher) -> None:
        assert (await written(line, begin("a"))).applied
        redis_server.ask("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        assert (await written(line, begin("b"))).applied

    on_loop(redis, main)


def test_an_answer_that_is_lost_in_flight_is_told_and_the_repeated_write_knows_itself(
    tapped: RedisStore, tap: Tap
) -> None:
    async def main(line: Batcher) -> None:
        write = begin()
        tap.lose_answers()
        with pytest.raises(errors.StoreUnavailable):
            await written(line, write)
        tap.heal()
        entry = entry_of(await written(line, write), applied=False)
        assert entry.write_id == write.write_id
        settle = move(Verb.SETTLE, entry.version)
        tap.lose_answers()
        with pytest.raises(errors.StoreUnavailable):
            await written(line, settle)
        tap.heal()
        assert entry_of(await written(line, settle), applied=False).write_id == settle.write_id

    on_loop(tapped, main)


def test_a_frozen_server_is_given_up_by_the_thread_when_others_want_the_store() -> None:
    with RedisServer() as own_server:

        async def main(line: Batcher) -> None:
            own_server.freeze()
            try:
                first = asyncio.ensure_future(written(line, begin("first")))
                await soon(lambda: is_late(line))
                began = time.monotonic()
                second = asyncio.ensure_future(written(line, begin("second")))
                with pytest.raises(errors.StoreUnavailable):
                    await first
                assert time.monotonic() - began < 3
            finally:
                own_server.thaw()
            # Sent on a new connection, whichever way the freeze ended for it.
            await asyncio.gather(second, return_exceptions=True)
            assert (await written(line, begin("third"))).applied

        with closing(RedisStore(f"{own_server.fresh_url()}&socket_timeout=0.5")) as store:
            store.read([])
            on_loop(store, main)


def test_a_refused_command_spoils_only_its_own_write(redis: RedisStore, redis_server: RedisServer) -> None:
    async def main(line: Batcher) -> None:
        await written(line, begin("foreign"))
        (name,) = redis_server.ask("KEYS", "*:e:*foreign*")[-1:]
        redis_server.ask("SET", name, "something else")
        answers = await asyncio.gather(
            written(line, begin("foreign")), written(line, begin("neighbour")), return_exceptions=True
        )
        assert isinstance(answers[0], errors.WriteRefused)
        assert isinstance(answers[1], Answer)
        assert answers[1].entry is not None

    on_loop(redis, main)


@pytest.mark.parametrize("key", ["lone \ud800 surrogate", "with \x00 in it"])
def test_text_that_cannot_be_stored_spoils_only_its_own_write(either: Store, key: str) -> None:
    """Of the two stores each takes some of it; none takes it for another text."""

    async def main(line: Batcher) -> None:
        bad, good = await asyncio.gather(
            written(line, begin(key)), written(line, begin("good")), return_exceptions=True
        )
        assert isinstance(good, Answer)
        assert good.applied
        assert isinstance(bad, errors.WriteRefused) or (
            isinstance(bad, Answer) and entry_of(bad, applied=True).key == key
        )

    on_loop(either, main)


def test_a_session_that_is_ended_in_flight_is_told_and_the_next_write_opens_another(
    postgres: PostgresStore, servers: Servers
) -> None:
    assert postgres.wire.connection is not None
    pid = postgres.wire.connection.info.backend_pid

    async def main(line: Batcher) -> None:
        entry_of(await written(line, begin("k")), applied=True)
        with psycopg.connect(servers.emptied_database(), autocommit=True) as other:
            other.execute("SELECT pg_terminate_backend(%s, 5000)", (pid,))
        with pytest.raises(errors.StoreUnavailable):
            await written(line, begin("lost"))
        assert (await written(line, begin("next"))).applied

    on_loop(postgres, main)


def test_an_interrupt_behind_the_sending_leaves_no_answer_for_the_next_one(
    redis: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("onceward.store.redis._Flight", interrupt)
        with pytest.raises(KeyboardInterrupt):
            start(redis, begin("interrupted"))

    assert redis._wire is None, "its answer is still to come"
    assert redis.commit([begin("interrupted")])[0].entry is not None


def test_a_flight_that_is_given_up_leaves_no_answer_for_the_next_one(either: RedisStore | PostgresStore) -> None:
    departed(start(either, begin("given up"))).give_up()

    assert entry_of(either.commit([begin("next")])[0], applied=True).key == "next"


def test_a_flight_that_fails_closes_its_connection(redis: RedisStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(_: Parcel) -> None:
        raise ConnectionResetError("gone")

    flight = departed(start(redis, begin("k")))
    monkeypatch.setattr(Parcel, "replies", lost)
    with pytest.raises(errors.StoreUnavailable, match="gone"):
        flight.finish()

    assert redis._wire is None


def test_irreversible_claims_do_not_fly_to_a_server_that_forgets() -> None:
    with RedisServer(durable=False) as forgetful, closing(RedisStore(forgetful.fresh_url())) as store:
        store.read([])

        assert start(store, begin("irreversible", repeatable=False)) is None
        departed(start(store, begin("repeatable", repeatable=True))).finish()


@pytest.mark.parametrize("scheme", ["redis", "rediss"])
def test_only_a_plain_connection_to_one_server_that_says_so_is_flown_on(scheme: str) -> None:
    wire = Wire(parse_target(f"{scheme}://localhost"), "", lambda _: None)
    wire._lines = {("localhost", 1): cast("Line", None)}
    assert not wire.can_depart(durable=False), "nobody said that it is alone"
    wire._is_alone = True
    assert wire.can_depart(durable=False) == (scheme == "redis")
    wire._lines[("localhost", 2)] = cast("Line", None)
    assert not wire.can_depart(durable=False)


def test_what_goes_wrong_in_the_server_while_a_batch_flies_is_told_by_its_end(servers: Servers) -> None:
    url = servers.postgres.create_database()
    with closing(PostgresStore(url)) as store:
        store.read([])
        with psycopg.connect(url, autocommit=True) as other:
            other.execute("DROP FUNCTION onceward_commit_v4")
        flight = departed(start(store, begin("k")))
        while not flight.poll():
            pass
        with pytest.raises(errors.StoreUnavailable):
            flight.finish()
        assert store.wire.connection is None


def test_what_postgres_cannot_be_sent_leaves_the_connection_as_it_was(postgres: PostgresStore) -> None:
    with pytest.raises(BatchFailed):
        start(postgres, begin("with \x00 in it"))

    assert postgres.read([Ref(SCOPE, "k")]).entries == (None,)
    assert postgres.commit([begin("k")])[0].applied


def test_a_begin_that_has_to_be_asked_again_is_left_to_one_who_can_wait(
    postgres: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = postgres.wire.rows
    flight = departed(start(postgres, begin("k")))
    with monkeypatch.context() as patched:
        # As for an entry that was purged between the look and the lock.
        patched.setattr(postgres.wire, "rows", lambda asked: rows(asked)[1:])
        while not flight.poll():
            pass
    assert flight.grounded
    assert not flight.received

    assert flight.finish()[0].entry is not None


def test_silence_is_counted_from_the_sending(postgres: PostgresStore) -> None:
    assert postgres.wire.connection is not None
    pid = postgres.wire.connection.info.backend_pid
    postgres.wire.connection.seconds = 0.2
    os.kill(pid, signal.SIGSTOP)
    try:
        flight = departed(start(postgres, begin("k")))
        sent_at = time.monotonic()
        until(lambda: time.monotonic() > sent_at + 0.2)
        began = time.monotonic()
        with pytest.raises(errors.StoreUnavailable, match="does not answer"):
            flight.finish()
        assert time.monotonic() - began < 0.15
    finally:
        os.kill(pid, signal.SIGCONT)


def test_where_nobody_may_say_whether_there_are_more_servers_nothing_flies(redis_server: RedisServer) -> None:
    redis_server.ask("ACL", "SETUSER", "shy", "on", ">secret", "~*", "+@all", "-info")
    try:
        url = redis_server.fresh_url().replace("redis://", "redis://shy:secret@")
        with closing(RedisStore(f"{url}&volatile=ok")) as store:
            store.read([])
            assert start(store, begin("k")) is None
            assert store.commit([begin("k")])[0].applied
    finally:
        redis_server.ask("ACL", "DELUSER", "shy")
