"""Events that are committed while a page of the log is read for a client."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest
from tests.hub.events.feed_server import TIMEOUT_SECONDS, FeedServer, client, ids, new, types, write
from tests.waiting import until
from websockets.exceptions import ConnectionClosed

from onceward.errors import StoreUnavailable
from onceward.hub.db.engine import Database, Transaction
from onceward.hub.db.timestamps import now_text
from onceward.hub.events.catch_up import CatchUpPage, read_catch_up
from onceward.hub.events.log import Extent, append, delete_old_events, extent
from onceward.hub.events.session import FeedSession

# Nothing but the right wake-up ends a wait.
NEVER = 600.0

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


def test_events_that_arrive_while_the_log_is_read_are_sent_at_once(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = FeedServer(database, heartbeat_seconds=NEVER)
    read = threading.Event()

    def late(*given: Any) -> CatchUpPage:
        page = read_catch_up(*given)
        if not read.is_set():
            read.set()
            with database.write() as tx:
                append(tx, new(5))
                delete_old_events(tx, now_text(), limit=4)
            server.feed.notify()
            until(lambda: server.feed._ring._end == 5, "the ring does not move")
        return page

    monkeypatch.setattr("onceward.hub.events.feed.read_catch_up", late)

    def slowly(tx: Transaction) -> Extent:
        # The page is read from the log only as long as the ring has not begun.
        assert read.wait(TIMEOUT_SECONDS)
        return extent(tx)

    monkeypatch.setattr("onceward.hub.events.tail.extent", slowly)

    async def follow() -> None:
        async with client(server) as one:
            await one.hello(after_event_id=0)
            assert await one.events(1) == [5]

    with server:
        asyncio.run(follow())


def test_a_session_ended_while_the_log_is_read_does_not_wait(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = FeedServer(database, heartbeat_seconds=NEVER)
    reading = threading.Event()

    def never(_tx: Transaction) -> Extent:
        raise StoreUnavailable("not for the tail")

    def late(*given: Any) -> CatchUpPage:
        page = read_catch_up(*given)
        reading.set()
        (session,) = server.feed._sessions
        assert isinstance(session, FeedSession)
        until(session._has_ended, "it does not end")
        return page

    monkeypatch.setattr("onceward.hub.events.tail.extent", never)
    monkeypatch.setattr("onceward.hub.events.feed.read_catch_up", late)

    async def follow() -> None:
        async with client(server) as one:
            await one.hello()
            await asyncio.to_thread(reading.wait, TIMEOUT_SECONDS)
            await one.send({"type": "hello"})
            assert (await one.receive_until("error"))[-1]["code"] == "bad-message"
            with pytest.raises(ConnectionClosed):
                await one.receive()

    with server:
        asyncio.run(follow())


def test_a_session_survives_a_database_outage(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """It sends pings meanwhile."""
    # More than a process reads ahead when it starts.
    written = write(database, new(600))
    asked: list[float] = []

    def failing(*given: Any) -> CatchUpPage:
        # Longer than the silence that it keeps, since wake-ups of the feed make it ask sooner than its pauses would; and
        # more than once, since a busy machine makes it ask later.
        asked.append(time.monotonic())
        if asked[-1] - asked[0] < 0.4 or len(asked) < 4:
            raise StoreUnavailable("not now")
        return read_catch_up(*given)

    monkeypatch.setattr("onceward.hub.events.feed.read_catch_up", failing)

    async def follow() -> None:
        async with client(server) as one:
            await one.hello(after_event_id=0)
            received = await one.receive_until("caught_up")

        assert "ping" in types(received[:3])
        assert ids(received) == written

    with FeedServer(database, heartbeat_seconds=0.05) as server:
        asyncio.run(follow())
