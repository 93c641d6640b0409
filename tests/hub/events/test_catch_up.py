"""No event is missed and none comes twice, however often the connection breaks and however far behind a client is."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tests.hub.events.feed_server import Client, FeedServer, client, ids, last_id, new, whole_log, write

from onceward.hub.db.engine import Database
from onceward.hub.events.catch_up import FIRST_EVENTS, read_catch_up
from onceward.hub.events.feed import Feed
from onceward.hub.events.framing import FRAMES, EncodedEvent, texts
from onceward.hub.events.log import Event, Filter
from onceward.hub.events.ring import WRITE_BYTES_MAX

# How far behind a client is; `make soak-events` has 100,000.
BEHIND = int(os.environ.get("ONCEWARD_BEHIND", "10000"))


@contextmanager
def writers(database: Database, feed: Feed, count: int = 2) -> Iterator[None]:
    """Commit events, one to three at a time, until the block ends."""
    ended = threading.Event()

    def run(number: int) -> None:
        seeded = random.Random(number)
        while not ended.wait(0.002):
            write(database, new(seeded.randint(1, 3), topic=f"t{seeded.randint(0, 2)}"))
            feed.notify()

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join()


def test_after_200_random_disconnects_the_union_is_the_log(database: Database) -> None:
    seeded = random.Random(4)

    async def follow(server: FeedServer, breaks: int) -> list[int]:
        seen: list[int] = []
        for _ in range(breaks):
            async with client(server) as one:
                await one.hello(after_event_id=seen[-1] if seen else 0)
                seen += await one.events(seeded.randint(1, 40))
                one.connection.transport.abort()
        return seen

    async def follow_all(server: FeedServer) -> list[list[int]]:
        return await asyncio.gather(*(follow(server, 20) for _ in range(10)))

    write(database, new(600))
    with FeedServer(database) as server, writers(database, server.feed):
        everything = asyncio.run(follow_all(server))

    log = [event.event_id for event in whole_log(database)]
    for seen in everything:
        assert seen == log[: len(seen)]


@pytest.mark.parametrize("subscriptions", [None, ["t1"], {"names": ["test.rare"]}], ids=["all", "topic", "name"])
def test_a_client_far_behind_gets_everything_while_others_write(database: Database, subscriptions: object) -> None:
    mixed = [*new(3, topic="t1"), *new(1, topic="t2", name="test.rare"), *new(6, topic="t2")]
    for _ in range(BEHIND // 2_000):
        write(database, mixed * 200)

    async def follow(server: FeedServer) -> list[int]:
        async with client(server) as one:
            until = (await one.hello(after_event_id=0, subscriptions=subscriptions))["replay_until"]
            received = await one.receive_until("caught_up")
            assert received[-1]["after_event_id"] >= until
            return ids(received)

    with FeedServer(database) as server, writers(database, server.feed):
        seen = asyncio.run(follow(server))

    assert len(seen) >= BEHIND // 10
    wanted = [event.event_id for event in whole_log(database) if is_wanted(event, subscriptions)]
    assert seen == wanted[: len(seen)]


def is_wanted(event: Event, subscriptions: object) -> bool:
    return subscriptions is None or (event.topic_id == "t1" if subscriptions == ["t1"] else event.name == "test.rare")


def test_clients_at_every_distance_pass_from_the_log_to_the_ring_without_a_gap(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ring is so small that clients fall out of it all the time."""
    monkeypatch.setattr("onceward.hub.events.ring.Ring.__init__.__defaults__", (16, 4_000))
    write(database, new(300))

    async def follow(server: FeedServer, after: int, count: int) -> None:
        async with client(server) as one:
            await one.hello(after_event_id=after)
            assert await one.events(count) == list(range(after + 1, after + count + 1))

    async def follow_all(server: FeedServer) -> None:
        await asyncio.gather(*(follow(server, after, 600 - after) for after in range(0, 300, 12)))

    with FeedServer(database) as server, writers(database, server.feed):
        asyncio.run(follow_all(server))


@pytest.mark.parametrize(("size", "held_max"), [(10, 500), (16_000, 32)])
@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_page_for_a_client_that_is_behind_has_a_bounded_size(database: Database, size: int, held_max: int) -> None:
    write(database, new(2_000, size=size))
    cursor, limit, pages = 0, FIRST_EVENTS, []
    while cursor < 2_000:
        page = read_catch_up(database, cursor, limit, Filter(), FRAMES)
        seen = [json.loads(text)["event"]["event_id"] for data, _ in page.writes for text in texts(data)]
        assert seen == list(range(cursor + 1, page.end + 1))
        for data, last in page.writes:
            assert json.loads(list(texts(data))[-1])["event"]["event_id"] == last
        pages.append(len(seen))
        assert all(len(data) <= WRITE_BYTES_MAX for data, _ in page.writes)
        cursor, limit = page.end, page.next_limit

    assert max(pages) <= held_max
    assert max(pages[1:-1]) >= held_max // 4, "and it is not needlessly small"


def test_the_bytes_of_an_event_are_encoded_once_for_all_clients(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    live: list[int] = []
    replayed: list[int] = []

    def counted(into: list[int], event: Event) -> EncodedEvent:
        into.append(event.event_id)
        return EncodedEvent(event)

    monkeypatch.setattr("onceward.hub.events.tail.EncodedEvent", functools.partial(counted, live))
    monkeypatch.setattr("onceward.hub.events.catch_up.EncodedEvent", functools.partial(counted, replayed))

    async def follow(server: FeedServer) -> None:
        async with client(server) as one:
            await one.hello()
            await one.receive_until("caught_up")
            async with everybody:
                ready.append(one)
                everybody.notify_all()
                await everybody.wait_for(lambda: len(ready) == 20)
            write_once()
            assert len(await one.events(100)) == 100

    def write_once() -> None:
        if not last_id(database):
            write(database, new(100))
            server.feed.notify()

    async def follow_all() -> None:
        await asyncio.gather(*(follow(server) for _ in range(20)))

    ready: list[Client] = []
    everybody = asyncio.Condition()
    with FeedServer(database) as server:
        asyncio.run(follow_all())

    assert live == list(range(1, 101))
    # A client that is late on a busy machine has read some itself; encoding them for each client would make it 2,000.
    assert len(replayed) < 1_000
