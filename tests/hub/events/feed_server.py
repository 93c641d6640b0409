"""A small hub on a real socket: the routes of the feed, and nothing in front of them. And a client to follow it with."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import uvicorn
from fastapi import FastAPI
from tests.waiting import soon
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.asyncio.client import ClientConnection, connect

from onceward.hub.db.engine import Database
from onceward.hub.events.feed import Feed
from onceward.hub.events.log import Event, NewEvent, append, extent, page
from onceward.hub.routes import events
from onceward.hub.server.http_protocol import HttpProtocol
from onceward.hub.server.websocket_protocol import FramesProtocol
from onceward.hub.web import problems

# Longer than anything here takes, and short enough to see that something hangs.
TIMEOUT_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Hub:
    database: Database
    feed: Feed


class _Server(uvicorn.Server):
    """A server that ends its streams first, like the hub's own."""

    feed: Feed
    stopped: asyncio.Event

    async def main_loop(self) -> None:
        await self.stopped.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        await self.feed.stop()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        for one in sockets or []:
            one.close()
        # As the original waits, but more often.
        await soon(lambda: not self.server_state.connections and not self.server_state.tasks, "somebody stays")


class FeedServer:
    """A server that runs inside its `with` block; with `ours=False` it is uvicorn's own."""

    def __init__(
        self,
        database: Database,
        *,
        ours: bool = True,
        heartbeat_seconds: float = 15.0,
        stall_seconds: float = 30.0,
        poll_seconds: float = 1.0,
        ask_database: bool = True,
        send_buffer: int | None = None,
    ) -> None:
        self.feed = Feed(
            database,
            heartbeat_seconds=heartbeat_seconds,
            stall_seconds=stall_seconds,
            poll_seconds=poll_seconds,
            ask_database=ask_database,
        )
        app = FastAPI()
        app.state.hub = Hub(database, self.feed)
        app.include_router(events.router)
        problems.install(app)
        self._listener = socket.socket()
        if send_buffer is not None:
            # Inherited by every connection: the system buffers little before the server must wait.
            self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
        self._listener.bind(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        config = uvicorn.Config(
            app,
            http=HttpProtocol if ours else HttpToolsProtocol,
            ws=FramesProtocol if ours else WebSocketsSansIOProtocol,
            ws_per_message_deflate=False,
            ws_ping_interval=None,
            log_config=None,
            access_log=False,
            lifespan="off",
        )
        self._server = _Server(config)
        self._server.feed = self.feed
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="serving")
        self._loop: asyncio.AbstractEventLoop | None = None

    def _run(self) -> None:
        async def main() -> None:
            self._loop = asyncio.get_running_loop()
            self._server.stopped = asyncio.Event()
            self._loop.call_soon(self._ready.set)
            await self._server.serve([self._listener])

        with asyncio.Runner(loop_factory=self._server.config.get_loop_factory()) as runner:
            runner.run(main())

    @property
    def connections(self) -> int:
        return len(self._server.server_state.connections)

    @property
    def http(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def ws(self) -> str:
        return f"ws://127.0.0.1:{self.port}/ws"

    def __enter__(self) -> Self:
        self._listener.listen(512)
        self._thread.start()
        assert self._ready.wait(TIMEOUT_SECONDS)
        return self

    def stop(self) -> None:
        """Begin to stop, as after a signal."""
        assert self._loop is not None
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._server.stopped.set)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()
        self._thread.join(TIMEOUT_SECONDS)
        assert not self._thread.is_alive()
        self._listener.close()


class Client:
    """A client of `/ws`, which checks for every session that ids increase."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection
        self.last = 0

    async def hello(self, **fields: Any) -> dict[str, Any]:
        await self.send({"type": "hello", **fields})
        return await self.receive()

    async def send(self, message: Any) -> None:
        await self.connection.send(json.dumps(message))

    async def receive(self) -> dict[str, Any]:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            message: dict[str, Any] = json.loads(await self.connection.recv())
        if message["type"] == "event":
            assert message["event"]["event_id"] > self.last
            self.last = message["event"]["event_id"]
        return message

    async def receive_until(self, kind: str) -> list[dict[str, Any]]:
        """Return all messages up to the first of this type, inclusive."""
        async with asyncio.timeout(2 * TIMEOUT_SECONDS):
            received = [await self.receive()]
            while received[-1]["type"] != kind:
                received.append(await self.receive())
        return received

    async def events(self, count: int) -> list[int]:
        """Return the ids of the next events; skip other messages between them."""
        ids: list[int] = []
        # Heartbeats do not extend the wait.
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while len(ids) < count:
                message = await self.receive()
                if message["type"] == "event":
                    ids.append(message["event"]["event_id"])
        return ids


@asynccontextmanager
async def client(server: FeedServer, **options: Any) -> AsyncIterator[Client]:
    # A client that has not read everything would wait for its close frame until a timeout.
    async with connect(server.ws, compression=None, ping_interval=None, close_timeout=0.1, **options) as connection:
        yield Client(connection)


def new(count: int = 1, *, topic: str | None = "t1", name: str = "test.happened", size: int = 2) -> list[NewEvent]:
    return [NewEvent(name, topic, "test", f"e{number}", f'{{"text":"{"x" * size}"}}') for number in range(count)]


def write(database: Database, events: Sequence[NewEvent]) -> list[int]:
    with database.write() as tx:
        return append(tx, events)


def last_id(database: Database) -> int:
    with database.read() as tx:
        return extent(tx).last_event_id


def whole_log(database: Database) -> list[Event]:
    found: list[Event] = []
    while True:
        with database.read() as tx:
            more = page(tx, found[-1].event_id if found else 0, 2**62, 500)
        found += more
        if len(more) < 500:
            return found


def ids(messages: Iterable[dict[str, Any]]) -> list[int]:
    return [message["event"]["event_id"] for message in messages if message["type"] == "event"]


def types(messages: Iterable[dict[str, Any]]) -> list[str]:
    return [message["type"] for message in messages]
