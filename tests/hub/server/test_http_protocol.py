"""The HTTP protocol on an event loop of the test, which the test can block."""

from __future__ import annotations

import asyncio
import functools
import socket
import threading
import time
from typing import Any

import uvicorn
import uvloop
from uvicorn.server import ServerState

from onceward.hub.server.connection_limits import ConnectionLimits
from onceward.hub.server.http_protocol import HttpProtocol

HEAD_SECONDS = 0.2
SUSPEND = b"GET /"


async def respond(_scope: Any, _receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body"})


class LateProtocol(HttpProtocol):
    """A protocol whose process is suspended for a while, when it reads `SUSPEND` from any connection."""

    accepted = threading.Semaphore(0)
    suspended = threading.Event()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.accepted.release()

    def data_received(self, data: bytes) -> None:
        if data == SUSPEND:
            self.suspended.set()
            time.sleep(2 * HEAD_SECONDS)
        super().data_received(data)


def test_a_head_that_arrives_while_the_process_is_suspended_is_answered() -> None:
    async def scenario() -> bytes:
        config = uvicorn.Config(respond, ws="none", lifespan="off", log_level="error")
        config.load()
        limits = ConnectionLimits(head_seconds=HEAD_SECONDS)
        protocol = functools.partial(LateProtocol, config, ServerState(), {}, limits=limits)
        server = await asyncio.get_running_loop().create_server(protocol, "127.0.0.1", 0)
        async with server:
            return await asyncio.to_thread(exchange, server.sockets[0].getsockname())

    assert uvloop.run(scenario()).startswith(b"HTTP/1.1 204 ")


def exchange(address: tuple[str, int]) -> bytes:
    with socket.create_connection(address, 10) as client, socket.create_connection(address, 10) as other:
        assert all(LateProtocol.accepted.acquire(timeout=10) for _ in range(2))
        other.sendall(SUSPEND)
        assert LateProtocol.suspended.wait(10)
        client.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        return client.recv(1000)
