"""A client that does not read: it delays no other client, costs no memory, and gets the id from which to resume."""

from __future__ import annotations

import asyncio
import datetime
import json
import os
import socket
import statistics
import time

import pytest
from tests.hub.events.feed_server import TIMEOUT_SECONDS, Client, FeedServer, client, new, write
from tests.waiting import SECONDS_MAX, soon
from websockets.exceptions import ConnectionClosed

from onceward.hub.db.engine import Database
from onceward.hub.events.handshake import UNAUTHORIZED
from onceward.hub.events.ring import WRITE_BYTES_MAX
from onceward.hub.events.session import FeedSession

# None of this depends on the database.
pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)

# The transport takes a write as long as less than this waits in it (asyncio's default).
HIGH_WATER = 64 * 1024
SMALL = 16 * 1024
# How many follow beside the one that stalls; `make soak-events` has 200.
OTHERS = int(os.environ.get("ONCEWARD_CLIENTS", "30"))
EVENTS = 150


def sessions(server: FeedServer) -> list[FeedSession]:
    return [one for one in server.feed._sessions if isinstance(one, FeedSession)]


def small_buffer_socket() -> socket.socket:
    """A connection with a small receive buffer."""
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL)
    return one


async def stall(server: FeedServer, one: Client) -> FeedSession:
    """Let a client follow and read nothing. Return its session once it waits for the client."""
    before = set(sessions(server))
    await one.hello()
    await one.receive_until("caught_up")
    one.connection.transport.pause_reading()
    (session,) = set(sessions(server)) - before
    return session


def test_one_stalled_client_delays_no_other_client_and_costs_no_memory(database: Database) -> None:
    """The next event is written when all other clients have received the last one."""
    latencies: list[float] = []
    everybody = asyncio.Event()

    async def follow(server: FeedServer) -> None:
        with small_buffer_socket() as connection:
            connection.setblocking(False)
            await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", server.port))
            async with client(server, sock=connection) as stalled:
                session = await stall(server, stalled)
                async with asyncio.TaskGroup() as group:
                    for _ in range(OTHERS):
                        group.create_task(listen(server))
                    await soon(lambda: server.feed.followers == OTHERS + 1)
                    for _ in range(EVENTS):
                        everybody.clear()
                        write(database, new(1, size=4_000))
                        server.feed.notify()
                        await asyncio.wait_for(everybody.wait(), SECONDS_MAX)

                # It was stalled all this time, and the others received everything.
                assert session._writing_since is not None
                assert session in sessions(server)
                assert session._unsent is not None
                assert session._unsent() <= HIGH_WATER + WRITE_BYTES_MAX + 8_192
                assert statistics.median(latencies) < 0.005 * OTHERS
                stalled.connection.transport.abort()

    async def listen(server: FeedServer) -> None:
        count = 0
        async with client(server) as one:
            await one.hello()
            while count < EVENTS:
                message = await one.receive()
                if message["type"] == "event":
                    count += 1
                    latencies.append(time.time() - _seconds(message["event"]["created_at"]))
                    if len(latencies) % OTHERS == 0:
                        everybody.set()

    with FeedServer(database, send_buffer=SMALL) as server:
        asyncio.run(follow(server))


def _seconds(at: str) -> float:
    return datetime.datetime.fromisoformat(at).timestamp()


@pytest.mark.parametrize("source", ["ring", "log"])
@pytest.mark.parametrize("moment", ["soon", "late"])
def test_a_stalled_client_is_closed_with_the_id_to_resume_from(database: Database, moment: str, source: str) -> None:
    """The client reads again while the hub still tries to send the close frame, or when it is about to cut the
    connection.
    """
    # More than a process reads ahead when it starts.
    old = 600 if source == "log" else 0

    async def follow(server: FeedServer) -> None:
        with small_buffer_socket() as connection:
            connection.setblocking(False)
            await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", server.port))
            async with client(server, sock=connection, max_size=None) as one:
                if source == "log":
                    await one.hello(after_event_id=0)
                    one.connection.transport.pause_reading()
                    (session,) = sessions(server)
                else:
                    session = await stall(server, one)
                    write(database, new(100, size=8_000))
                    server.feed.notify()
                await soon(lambda: session._is_cut if moment == "soon" else not server.feed.followers)
                one.connection.transport.resume_reading()
                received = await one.receive_until("error")
                with pytest.raises(ConnectionClosed):
                    await one.receive()

                assert received[-1]["code"] == "stalled"
                assert received[-1]["after_event_id"] == one.last
                assert 0 < one.last < 100
                assert one.connection.close_code == 4413
                assert one.connection.close_reason == f"resume after {one.last}"
            async with client(server) as again:
                await again.hello(after_event_id=one.last)
                assert await again.events(100 - one.last) == list(range(one.last + 1, 101))

    write(database, new(old, size=8_000))
    with FeedServer(database, stall_seconds=0.2, send_buffer=SMALL) as server:
        asyncio.run(follow(server))


@pytest.mark.parametrize("ours", [True, False], ids=["ready-frames", "any-server"])
@pytest.mark.parametrize("kind", ["websocket", "stream"])
def test_a_client_that_never_reads_again_is_removed_from_the_feed(
    database: Database, kind: str, ours: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for setting in ("events.websocket._CLOSE", "events.sse._CLOSE", "server.websocket_protocol._CUT"):
        monkeypatch.setattr(f"onceward.hub.{setting}_SECONDS", 0.1)
    write(database, new(400, size=8_000))

    async def follow(server: FeedServer) -> None:
        with small_buffer_socket() as connection:
            connection.settimeout(TIMEOUT_SECONDS)
            connection.connect(("127.0.0.1", server.port))
            _send_request(connection, kind)
            await soon(lambda: server.feed.followers == 1)
            await soon(lambda: server.feed.followers == 0)
            if ours:
                # The connection itself is gone, although megabytes were never read.
                await soon(lambda: not server.connections)

    with FeedServer(database, ours=ours, stall_seconds=0.1, send_buffer=SMALL) as server:
        asyncio.run(follow(server))


def _send_request(connection: socket.socket, kind: str) -> None:
    if kind == "stream":
        connection.sendall(b"GET /api/v1/events/stream?after=0 HTTP/1.1\r\nHost: localhost\r\n\r\n")
        return
    connection.sendall(
        b"GET /ws HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    assert connection.recv(12) == b"HTTP/1.1 101"
    hello = json.dumps({"type": "hello", "after_event_id": 0}).encode()
    connection.sendall(bytes((0x81, 0x80 | len(hello), 0, 0, 0, 0)) + hello)


def test_a_slow_client_that_keeps_reading_is_never_closed(database: Database) -> None:
    """Sending its backlog takes longer than the hub's timeout, but the backlog shrinks."""

    async def follow(server: FeedServer) -> None:
        with small_buffer_socket() as connection:
            connection.setblocking(False)
            await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", server.port))
            async with client(server, sock=connection, max_queue=1) as one:
                await one.hello(after_event_id=0)
                (session,) = sessions(server)
                assert session._unsent is not None
                waited: list[float] = []
                while one.last < 200:
                    since, began, unsent = session._writing_since, session._written_at, session._unsent()
                    await one.events(1)
                    if len(waited) < 2 and since is not None and session._unsent() < unsent:
                        # The hub got rid of something; nothing more is read before it has noticed.
                        await soon(lambda since=since: session._writing_since != since)
                        if session._writing_since is not None and session._written_at == began:
                            waited.append(session._loop.time() - began)
        assert len(waited) == 2
        assert min(waited) >= 0.5  # the clock of a loop counts milliseconds

    write(database, new(200, size=8_000))
    with FeedServer(database, stall_seconds=0.5, send_buffer=SMALL) as server:
        asyncio.run(follow(server))


def test_a_stop_does_not_wait_for_a_client_that_does_not_read(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onceward.hub.events.feed._STOP_SECONDS", 0.2)
    monkeypatch.setattr("onceward.hub.events.websocket._CLOSE_SECONDS", 0.1)

    async def follow(server: FeedServer) -> None:
        with small_buffer_socket() as connection:
            connection.setblocking(False)
            await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", server.port))
            async with client(server, sock=connection) as one:
                session = await stall(server, one)
                write(database, new(100, size=8_000))
                server.feed.notify()
                await soon(lambda: session._writing_since is not None)
                server.stop()
                await soon(lambda: not server.feed.followers)
                one.connection.transport.abort()

    with FeedServer(database, send_buffer=SMALL) as server:
        asyncio.run(follow(server))


def test_a_client_that_does_not_read_can_be_dismissed(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its session ends by itself only when the client reads on; a second dismissal cuts it."""
    monkeypatch.setattr("onceward.hub.events.websocket._CLOSE_SECONDS", 0.1)

    async def follow(server: FeedServer) -> None:
        with small_buffer_socket() as connection:
            connection.setblocking(False)
            await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", server.port))
            async with client(server, sock=connection) as one, client(server) as other:
                session = await stall(server, one)
                await other.hello()
                session.owner = "nobody"
                write(database, new(100, size=8_000))
                server.feed.notify()
                await soon(lambda: session._writing_since is not None)
                assert server.feed.owners == {"nobody"}
                for _ in range(2):
                    session._loop.call_soon_threadsafe(server.feed.dismiss, "nobody", UNAUTHORIZED)
                await soon(lambda: server.feed.followers == 1)
                one.connection.transport.resume_reading()
                with pytest.raises(ConnectionClosed):
                    await one.receive_until("never")

                assert one.connection.close_code == 4401
                assert await other.events(100) == list(range(1, 101))

    with FeedServer(database, send_buffer=SMALL) as server:
        asyncio.run(follow(server))
