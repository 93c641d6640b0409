"""Following the log on the WebSocket, over a real socket."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator

import pytest
from tests.hub.events.feed_server import FeedServer, client, ids, new, types, whole_log, write
from websockets.exceptions import ConnectionClosed

from onceward.hub.db.engine import Database
from onceward.hub.db.timestamps import now_text
from onceward.hub.events.log import append, delete_old_events


@pytest.fixture
def server(database: Database, request: pytest.FixtureRequest) -> Iterator[FeedServer]:
    with FeedServer(database, ours=getattr(request, "param", True)) as server:
        yield server


# The hub's own server takes frames as they are; any other one gets messages.
both_servers = pytest.mark.parametrize("server", [True, False], ids=["ready-frames", "any-server"], indirect=True)


@both_servers
def test_a_client_gets_every_event_once_from_the_beginning_and_then_new_ones(
    server: FeedServer, database: Database
) -> None:
    written = write(database, new(1_200))

    async def follow() -> None:
        async with client(server) as one:
            hello = await one.hello(after_event_id=0)
            replay = await one.receive_until("caught_up")
            more = write(database, new(3))
            server.feed.notify()
            live = await one.events(3)

        assert hello["type"] == "hello_ok"
        assert hello["replay_until"] == written[-1]
        assert hello["oldest_event_id"] == 1
        assert ids(replay) == written
        assert types(replay).count("caught_up") == 1
        assert replay[-1] == {"type": "caught_up", "after_event_id": written[-1]}
        assert live == more

    asyncio.run(follow())


def test_an_event_frame_has_the_same_object_as_the_log(server: FeedServer, database: Database) -> None:
    write(database, new(2, topic=None))

    async def follow() -> None:
        async with client(server) as one:
            await one.hello(after_event_id=1)
            frame = await one.receive()

        assert frame == {"type": "event", "event": json.loads(whole_log(database)[1].json)}

    asyncio.run(follow())


def test_without_a_cursor_only_new_events_are_sent(server: FeedServer, database: Database) -> None:
    write(database, new(5))

    async def follow() -> None:
        async with client(server) as one, client(server) as other:
            await one.hello()
            await other.hello(after_event_id=None)
            assert await one.receive() == {"type": "caught_up", "after_event_id": 5}
            write(database, new(1))
            server.feed.notify()
            assert await one.events(1) == [6]
            assert await other.events(1) == [6]

    asyncio.run(follow())


@pytest.mark.parametrize("subscriptions", [["t1"], {"topics": ["t1", "t3"], "names": ["wanted"]}], ids=["one", "many"])
def test_a_filtered_client_gets_only_its_events_and_the_progress(
    server: FeedServer, database: Database, subscriptions: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onceward.hub.events.session._PROGRESS_SECONDS", 0.05)
    mixed = [*new(1, topic="t1", name="wanted"), *new(2, topic="t2", name="unwanted")] * 400
    written = write(database, mixed)

    async def follow() -> None:
        async with client(server) as one:
            await one.hello(after_event_id=0, subscriptions=subscriptions)
            replay = await one.receive_until("caught_up")
            write(database, mixed[:3])
            server.feed.notify()
            live = await one.receive_until("progress")

        assert ids(replay) == written[::3]
        assert replay[-1]["after_event_id"] == written[-1]
        assert ids(live) == [written[-1] + 1]
        assert live[-1]["after_event_id"] == written[-1] + 3

    asyncio.run(follow())


def test_a_client_with_a_cursor_older_than_the_log_gets_a_gap(server: FeedServer, database: Database) -> None:
    write(database, new(10))
    with database.write() as tx:
        delete_old_events(tx, now_text(), limit=6)

    async def follow() -> None:
        async with client(server) as one:
            hello = await one.hello(after_event_id=3)
            received = await one.receive_until("caught_up")

        assert hello["oldest_event_id"] == 7
        assert received[0] == {"type": "gap", "after_event_id": 3, "oldest_event_id": 7}
        assert ids(received) == [7, 8, 9, 10]

    asyncio.run(follow())


def test_events_deleted_by_retention_before_they_were_read_are_reported_as_a_gap(
    server: FeedServer, database: Database
) -> None:
    async def follow() -> None:
        async with client(server) as one:
            await one.hello()
            await one.receive_until("caught_up")
            with database.write() as tx:
                written = append(tx, new(5))
                delete_old_events(tx, now_text(), limit=4)
            server.feed.notify()
            received = [await one.receive(), await one.receive()]

        assert received[0] == {"type": "gap", "after_event_id": 0, "oldest_event_id": written[-1]}
        assert ids(received) == written[-1:]

    asyncio.run(follow())


async def last_frame_and_close(server: FeedServer, *messages: object) -> tuple[dict[str, object], int, str]:
    """Return the last frame and the close that follow these messages."""
    async with client(server) as one:
        for message in messages:
            await one.connection.send(message if isinstance(message, str | bytes) else json.dumps(message))
        frame: dict[str, object] = {}
        with contextlib.suppress(ConnectionClosed):
            while True:
                frame = await one.receive()
        assert one.connection.close_code is not None
        return frame, one.connection.close_code, one.connection.close_reason or ""


HELLO = {"type": "hello", "after_event_id": 0}


@pytest.mark.parametrize(
    "messages",
    [["{"], [b"{}"], [{"type": "hello", "subscriptions": ["x" * 70_000]}], [HELLO, HELLO], [HELLO, b"{}"]],
    ids=["no-json", "binary", "too-large", "two-hellos", "binary-later"],
)
def test_an_invalid_message_is_4400_with_the_reason(server: FeedServer, messages: list[object]) -> None:
    frame, code, _ = asyncio.run(last_frame_and_close(server, *messages))

    assert (frame["type"], frame["code"], code) == ("error", "bad-message", 4400)
    assert frame["detail"]


@both_servers
def test_a_cursor_beyond_the_log_is_4409(server: FeedServer, database: Database) -> None:
    write(database, new(3))

    for future in (4, 2**63, 10**30):
        frame, code, _ = asyncio.run(last_frame_and_close(server, {"type": "hello", "after_event_id": future}))
        assert (frame["type"], frame["code"], code) == ("error", "future-cursor", 4409)


def test_another_log_is_4410_and_the_same_log_is_followed(server: FeedServer, database: Database) -> None:
    write(database, new(3))

    async def follow() -> None:
        async with client(server) as one:
            epoch = (await one.hello(after_event_id=0))["log_epoch"]
        async with client(server) as one:
            assert (await one.hello(after_event_id=3, log_epoch=epoch))["type"] == "hello_ok"
        frame, code, _ = await last_frame_and_close(server, {**HELLO, "log_epoch": "another"})
        assert (frame["code"], code) == ("other-log", 4410)

    asyncio.run(follow())


def test_no_hello_in_time_is_4408(server: FeedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onceward.hub.events.websocket.HANDSHAKE_SECONDS", 0.05)

    frame, code, _ = asyncio.run(last_frame_and_close(server))

    assert (frame["code"], code) == ("no-hello", 4408)


def test_a_ping_is_answered_with_the_position(server: FeedServer, database: Database) -> None:
    write(database, new(3))

    async def follow() -> None:
        async with client(server) as one:
            await one.hello()
            await one.receive_until("caught_up")
            await one.send({"type": "pong"})
            await one.send({"type": "ping"})
            assert await one.receive() == {"type": "ping", "after_event_id": 3}

    asyncio.run(follow())


def test_silence_is_broken_by_heartbeats(database: Database) -> None:
    write(database, new(3))

    async def follow() -> None:
        with FeedServer(database, heartbeat_seconds=0.05) as server:
            async with client(server) as one:
                await one.hello()
                received = [await one.receive() for _ in range(4)]

        assert received[1:] == [{"type": "ping", "after_event_id": 3}] * 3

    asyncio.run(follow())


@both_servers
def test_a_stop_closes_with_the_id_to_resume_from(
    server: FeedServer, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It ends when the last session has, and waits no longer.
    monkeypatch.setattr("onceward.hub.events.feed._STOP_SECONDS", 600.0)
    write(database, new(7))

    async def follow() -> None:
        async with client(server) as one:
            await one.hello(after_event_id=2)
            await one.receive_until("caught_up")
            server.stop()
            error = await one.receive()
            with pytest.raises(ConnectionClosed) as closed:
                await one.receive()

        assert error.pop("detail")
        assert error == {"type": "error", "code": "stopping", "after_event_id": 7}
        assert closed.value.rcvd is not None
        assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (1012, "resume after 7")

    asyncio.run(follow())
