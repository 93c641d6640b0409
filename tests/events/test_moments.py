"""What happens at the very moment in which a client looks elsewhere: while a page of the log is read for it."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest
from tests.events.serving import PATIENCE_SECONDS, Serving, client, ids, new, types, write
from tests.waiting import until
from websockets.exceptions import ConnectionClosed

from onceward.db.clock import now_text
from onceward.db.engine import Database, Transaction
from onceward.errors import StoreUnavailable
from onceward.events.log import Extent, append, extent, retain
from onceward.events.replay import Replay, read_replay
from onceward.events.session import Session

# Nothing but the right wake-up ends a wait.
NEVER = 600.0

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


def test_what_arrives_while_the_log_is_read_is_not_waited_for(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    serving = Serving(database, heartbeat_seconds=NEVER)
    read = threading.Event()

    def late(*given: Any) -> Replay:
        page = read_replay(*given)
        if not read.is_set():
            read.set()
            with database.write() as tx:
                append(tx, new(5))
                retain(tx, now_text(), limit=4)
            serving.feed.hint()
            until(lambda: serving.feed._ring._end == 5, "the ring does not move")
        return page

    monkeypatch.setattr("onceward.events.feed.read_replay", late)

    def slowly(tx: Transaction) -> Extent:
        # The page is read from the log only as long as the ring has not begun.
        assert read.wait(PATIENCE_SECONDS)
        return extent(tx)

    monkeypatch.setattr("onceward.events.tail.extent", slowly)

    async def follow() -> None:
        async with client(serving) as one:
            await one.hello(after_event_id=0)
            assert await one.events(1) == [5]

    with serving:
        asyncio.run(follow())


def test_a_session_that_is_ended_while_the_log_is_read_does_not_rest(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    serving = Serving(database, heartbeat_seconds=NEVER)
    reading = threading.Event()

    def never(_tx: Transaction) -> Extent:
        raise StoreUnavailable("not for the tail")

    def late(*given: Any) -> Replay:
        page = read_replay(*given)
        reading.set()
        (session,) = serving.feed._sessions
        assert isinstance(session, Session)
        until(session._has_ended, "it does not end")
        return page

    monkeypatch.setattr("onceward.events.tail.extent", never)
    monkeypatch.setattr("onceward.events.feed.read_replay", late)

    async def follow() -> None:
        async with client(serving) as one:
            await one.hello()
            await asyncio.to_thread(reading.wait, PATIENCE_SECONDS)
            await one.say({"type": "hello"})
            assert (await one.hear_until("error"))[-1]["code"] == "bad-message"
            with pytest.raises(ConnectionClosed):
                await one.hear()

    with serving:
        asyncio.run(follow())


def test_a_session_outlives_a_database_that_does_not_answer(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And says meanwhile that it is there."""
    # More than a process reads ahead when it starts.
    written = write(database, new(600))
    asked: list[float] = []

    def failing(*given: Any) -> Replay:
        # Longer than the silence that it keeps, since wake-ups of the feed make it ask sooner than its pauses would; and
        # more than once, since a busy machine makes it ask later.
        asked.append(time.monotonic())
        if asked[-1] - asked[0] < 0.4 or len(asked) < 4:
            raise StoreUnavailable("not now")
        return read_replay(*given)

    monkeypatch.setattr("onceward.events.feed.read_replay", failing)

    async def follow() -> None:
        async with client(serving) as one:
            await one.hello(after_event_id=0)
            heard = await one.hear_until("caught_up")

        assert "ping" in types(heard[:3])
        assert ids(heard) == written

    with Serving(database, heartbeat_seconds=0.05) as serving:
        asyncio.run(follow())
