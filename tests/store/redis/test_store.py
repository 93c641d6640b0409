"""Specifics of Redis: round trips, forgotten scripts, indexes, counters."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing

import pytest
from tests.servers.redis import RedisServer, prefix_of
from tests.servers.tcp_proxy import TcpProxy

from onceward import errors
from onceward.core.claim import Ref, Status, Verb, Write
from onceward.core.outcome import Outcome
from onceward.store.redis import RedisStore
from onceward.testing import PinnedClock
from onceward.testing.caller import SCOPE, append, begin, entry_of, move

KEYS = [f"key-{number}" for number in range(12)]


@pytest.fixture
def url(redis_server: RedisServer) -> str:
    return redis_server.fresh_url()


@pytest.fixture
def store(url: str) -> Iterator[RedisStore]:
    with closing(RedisStore(url)) as store:
        yield store


def changes(server: RedisServer) -> tuple[int, int]:
    """Return the server's own counters of writes: changes of its data, and the size of its log."""
    info = server.execute("INFO")
    return info["rdb_changes_since_last_save"], info["aof_current_size"]


def scripts_run(server: RedisServer) -> int:
    calls: int = server.execute("INFO", "commandstats").get("cmdstat_evalsha", {}).get("calls", 0)
    return calls


# Round trips, and what they leave behind.


def test_a_batch_of_any_kind_is_one_round_trip(proxied: RedisStore, proxy: TcpProxy) -> None:
    held = {a.entry.key: a.entry.version for a in proxied.commit([begin(key) for key in KEYS]) if a.entry}
    assert proxy.trips == 1

    mixed: list[Write] = [
        begin("new"),
        move(Verb.SETTLE, held["key-0"], "key-0", outcome=Outcome(200, "[]", b"body")),
        move(Verb.RENEW, held["key-1"], "key-1"),
        append(held["key-2"], 1, b"chunk", key="key-2"),
        move(Verb.FAIL, 7, "key-3"),
        begin("key-4"),
    ]
    results = proxied.commit(mixed)

    assert [result.applied for result in results] == [True, True, True, True, False, False]
    assert proxy.trips == 2


def test_a_new_key_takes_two_round_trips_and_a_replay_one(proxied: RedisStore, proxy: TcpProxy) -> None:
    held = entry_of(proxied.commit([begin()])[0], applied=True)
    proxied.commit([move(Verb.SETTLE, held.version, outcome=Outcome(body=b"result"))])
    assert proxy.trips == 2

    replayed = entry_of(proxied.commit([begin()])[0], applied=False)

    assert replayed.outcome.body == b"result"
    assert proxy.trips == 3


def test_reading_many_entries_and_reading_chunks_take_one_round_trip_each(proxied: RedisStore, proxy: TcpProxy) -> None:
    held = entry_of(proxied.commit([begin()])[0], applied=True)
    proxied.commit([append(held.version, 1, b"a", b"b")])
    proxy.trips = 0

    assert proxied.read([held.ref, *(Ref(SCOPE, key) for key in KEYS)]).entries[0] is not None
    assert proxied.chunks(held.ref, held.version, 0, 10) == [b"a", b"b"]
    assert proxy.trips == 2


def test_a_refused_batch_writes_nothing(store: RedisStore, redis_server: RedisServer) -> None:
    held = {a.entry.key: a.entry.version for a in store.commit([begin(key) for key in KEYS]) if a.entry}
    store.commit([move(Verb.SETTLE, held["key-0"], "key-0", outcome=Outcome(body=b"result"))])
    before = changes(redis_server)

    refused: list[Write] = [
        *(begin(key) for key in KEYS[:6]),
        begin("key-6", fingerprint="other"),
        move(Verb.SETTLE, 1, "key-7"),
        append(held["key-8"], 5, b"late", key="key-8"),
        move(Verb.RELEASE, 1, "nothing-here"),
    ]
    results = store.commit(refused)
    store.read([Ref(SCOPE, key) for key in KEYS])
    store.scan(None, None, "", 100)
    store.purge(100)

    assert not any(result.applied for result in results)
    assert changes(redis_server) == before


def test_a_forgotten_script_costs_one_more_round_trip(
    proxied: RedisStore, proxy: TcpProxy, redis_server: RedisServer
) -> None:
    redis_server.execute("SCRIPT", "FLUSH")

    results = proxied.commit([begin(key) for key in KEYS])

    assert all(result.applied for result in results)
    assert proxy.trips == 2
    assert not proxied.commit([begin(KEYS[0])])[0].applied
    assert proxy.trips == 3


def test_opening_an_empty_store_twice_shows_the_same(url: str, store: RedisStore) -> None:
    store.commit([begin(key) for key in KEYS])

    with closing(RedisStore(url)) as again:
        assert [entry.key for entry in again.scan(SCOPE, None, "", 100).entries] != []
        assert (
            again.read([Ref(SCOPE, key) for key in KEYS]).entries == store.read([Ref(SCOPE, k) for k in KEYS]).entries
        )


# Stored names, and their deletion.


def test_every_name_has_its_bucket_and_purge_keeps_the_counters(
    url: str, clock: PinnedClock, redis_server: RedisServer
) -> None:
    with closing(RedisStore(url, clock)) as store:
        for result in store.commit([begin(key) for key in KEYS]):
            held = entry_of(result, applied=True)
            store.commit([append(held.version, 1, b"chunk", key=held.key)])
            store.commit([move(Verb.SETTLE, held.version, held.key, outcome=Outcome(chunks=1))])
        names = redis_server.execute("KEYS", f"{prefix_of(url)}:*")
        clock.advance(10**6)

        assert all(re.match(rb"t\d+:\{[0-9a-f]{2}\}:", name) for name in names)
        assert store.purge(5) == 5
        assert store.purge(500) == len(KEYS) - 5
        left = redis_server.execute("KEYS", f"{prefix_of(url)}:*")
        assert {name.rpartition(b":")[2] for name in left} == {b"version", b"schema", b"readable_from", b"upgraded_to"}


def test_versions_increase_across_a_purge_and_a_clock_set_back(url: str, clock: PinnedClock) -> None:
    with closing(RedisStore(url, clock)) as store:
        first = entry_of(store.commit([begin()])[0], applied=True)
        store.commit([move(Verb.RELEASE, first.version)])
        assert store.purge(10) == 1
        clock.advance(-3600)

        second = entry_of(store.commit([begin()])[0], applied=True)

        assert second.attempt == 1
        assert second.version == first.version + 1


def test_versions_stay_above_the_entry_when_the_counter_is_lost(
    url: str, clock: PinnedClock, redis_server: RedisServer
) -> None:
    with closing(RedisStore(url, clock)) as store:
        first = entry_of(store.commit([begin()])[0], applied=True)
        store.commit([move(Verb.FAIL, first.version)])
        redis_server.execute(
            "DEL", *(name.decode() for name in redis_server.execute("KEYS", f"{prefix_of(url)}:*:version"))
        )
        clock.advance(-3600)

        assert entry_of(store.commit([begin()])[0], applied=True).version > first.version


def test_an_entry_deleted_by_hand_leaves_nothing_behind_after_a_purge(
    url: str, clock: PinnedClock, redis_server: RedisServer
) -> None:
    with closing(RedisStore(url, clock)) as store:
        store.commit([begin("gone"), begin("kept")])
        (name,) = redis_server.execute("KEYS", f"{prefix_of(url)}:*:e:*gone")
        redis_server.execute("DEL", name)
        assert [entry.key for entry in store.scan(None, None, "", 10).entries] == ["kept"]
        clock.advance(10**6)

        assert store.purge(10) == 1
        assert redis_server.execute("KEYS", f"{prefix_of(url)}:*:all") == []


def test_a_scan_for_unfinished_entries_reads_only_those(url: str, redis_server: RedisServer) -> None:
    with closing(RedisStore(url)) as store:
        done = [entry_of(a, applied=True) for a in store.commit([begin(f"done-{number}") for number in range(300)])]
        store.commit([move(Verb.SETTLE, entry.version, entry.key) for entry in done])
        doubtful = entry_of(store.commit([begin("doubtful", repeatable=False)])[0], applied=True)
        store.commit([move(Verb.DOUBT, doubtful.version, "doubtful"), begin("running")])
        before = scripts_run(redis_server)

        page = store.scan(SCOPE, Status.IN_DOUBT, "", 100)

        assert [entry.key for entry in page.entries] == ["doubtful"]
        assert page.next == ""
        assert scripts_run(redis_server) - before == 2


def test_a_scan_shows_lasting_entries_exactly_once_while_others_come_and_go(url: str, clock: PinnedClock) -> None:
    with closing(RedisStore(url, clock)) as store:
        stays = {f"stays-{number}" for number in range(100)}
        store.commit([begin(key, repeatable=False) for key in stays])
        seen: list[str] = []
        after = ""
        for step in range(1000):
            store.commit([begin(f"comes-{step}-{number}") for number in range(5)])
            clock.advance(10**6)
            store.purge(3)
            page = store.scan(SCOPE, None, after, 7)
            seen += [entry.key for entry in page.entries if entry.key in stays]
            after = page.next
            if not after:
                break

        assert sorted(seen) == sorted(stays)


@pytest.mark.parametrize("cursor", ["nonsense!", "zz", "00*"])
def test_an_invalid_cursor_is_refused(store: RedisStore, cursor: str) -> None:
    with pytest.raises(errors.InvalidOption):
        store.scan(None, None, cursor, 10)
