"""One serving process: uvicorn, adapted to the hub."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Coroutine
from types import FrameType
from typing import Any, Protocol

import uvicorn

from onceward.hub.config.config import Config
from onceward.hub.server.connection_limits import limits_of
from onceward.hub.server.http_protocol import HttpProtocol
from onceward.hub.server.listener import BACKLOG
from onceward.hub.server.tls import tls_context
from onceward.hub.server.websocket_protocol import FramesProtocol
from onceward.hub.server.workers import CLOSE_SECONDS, STOP_SIGNALS

# Builds the application, in the process that serves it. Importable by name, for workers.
Factory = Callable[[Config], Any]

# Longer than clients and proxies keep an idle connection, so that they close it first. If the server closed it, a
# request that is sent at the same time would be lost.
KEEP_ALIVE_SECONDS = 75
_FAILED = 1
# A request makes some hundred objects that outlive a young collection and die with it. Fewer collections make a request
# a twentieth cheaper.
_GC_THRESHOLDS = (20_000, 20, 20)
# The writer's thread needs Python's global lock for a moment at each statement, and a busy event loop keeps it for this
# long. Python's default, 5 ms, is longer than a whole batch.
_SWITCH_SECONDS = 0.0005
# Interval of the check for a second Ctrl-C, the same as uvicorn's own.
_POLL_SECONDS = 0.1


class _Streams(Protocol):
    """The part of the hub's state that this module uses."""

    async def stop_streams(self) -> None: ...


class Server(uvicorn.Server):
    """uvicorn's server, which also reports when it is ready, ends streams first, and stops within a time limit."""

    close_seconds = CLOSE_SECONDS

    def __init__(self, config: Config, factory: Factory | None, on_ready: Callable[[], None]) -> None:
        super().__init__(_uvicorn_config(config, factory))
        self._grace_seconds = config.hub.grace_seconds
        self._tls = tls_context(config)
        self._handshake_seconds = config.hub.head_seconds
        self._on_ready = on_ready
        self._hurried = False

    def serve_on(self, listener: socket.socket) -> None:
        # uvicorn raises a signal again after handling it. This handler then has nothing left to do.
        for number in STOP_SIGNALS:
            signal.signal(number, self.handle_exit)
        try:
            self.run([listener])
        except SystemExit:
            # The reason has been logged already.
            raise SystemExit(_FAILED) from None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """End the grace period on a second Ctrl-C. Unlike uvicorn, still close the application."""
        super().handle_exit(sig, frame)
        self._hurried, self.force_exit = self._hurried or self.force_exit, False

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await (super().startup(sockets) if self._tls is None else self._startup_with_tls(sockets or []))
        if self.started:
            # The objects created so far live until the end. Freezing keeps the garbage collector from scanning them.
            gc.collect()
            gc.freeze()
            gc.set_threshold(*_GC_THRESHOLDS)
            sys.setswitchinterval(_SWITCH_SECONDS)
            self._on_ready()

    async def _startup_with_tls(self, listeners: list[socket.socket]) -> None:
        """Listen as uvicorn does, with a time limit for the handshake: asyncio's own is a minute."""
        await super().startup([])
        if not self.started:
            return

        def protocol() -> asyncio.Protocol:
            make: Any = self.config.http_protocol_class
            made: asyncio.Protocol = make(
                config=self.config, server_state=self.server_state, app_state=self.lifespan.state, _loop=None
            )
            return made

        loop = asyncio.get_running_loop()
        for listener in listeners:
            server = await loop.create_server(
                protocol,
                sock=listener,
                ssl=self._tls,
                backlog=BACKLOG,
                ssl_handshake_timeout=self._handshake_seconds,
            )
            self.servers.append(server)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        last = threading.Timer(self._grace_seconds + self.close_seconds, _end_at_once)
        last.daemon = True
        last.start()
        loop = asyncio.get_running_loop()
        end = loop.time() + self._grace_seconds
        for server in self.servers:
            server.close()
        streams: _Streams | None = self.lifespan.state.get("hub")
        try:
            if streams is not None:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._unless_hurried(streams.stop_streams()), self._grace_seconds)
        finally:
            # uvicorn declares an int here, but only passes it to asyncio.
            self.config.timeout_graceful_shutdown = max(0.0, end - loop.time())  # type: ignore[assignment]
            await super().shutdown(sockets)

    async def _wait_tasks_to_complete(self) -> None:
        await self._unless_hurried(super()._wait_tasks_to_complete())

    async def _unless_hurried(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        try:
            while not task.done():
                if self._hurried:
                    raise TimeoutError
                await asyncio.wait({task}, timeout=_POLL_SECONDS)
            await task
        finally:
            task.cancel()


def _uvicorn_config(config: Config, factory: Factory | None) -> uvicorn.Config:
    if factory is None:
        from onceward.hub.app import create_app  # noqa: PLC0415  # not needed with another application

        factory = create_app
    level = config.hub.log_level
    return uvicorn.Config(
        factory(config),
        # uvicorn only calls it, once for each connection.
        http=functools.partial(HttpProtocol, limits=limits_of(config)),  # type: ignore[arg-type]
        ws=FramesProtocol,
        ws_max_size=config.hub.max_body_bytes,
        # No pings: a slow reader gets a ping only after all data before it, and would be disconnected for that. The
        # feed disconnects stalled clients, and TCP keepalive detects dead ones.
        ws_ping_interval=None,
        ws_ping_timeout=None,
        # Events are many and small; compressing each one costs more than it saves.
        ws_per_message_deflate=False,
        lifespan="on",
        interface="asgi3",
        # The hub logs one line for each request itself. Other messages of uvicorn are for debugging.
        log_config=None,
        log_level="warning" if level == "info" else level,
        access_log=False,
        # The client's address must not depend on headers that anybody can send; see `hub/security/client_address.py`.
        proxy_headers=False,
        server_header=False,
        workers=1,
        backlog=BACKLOG,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
    )


def _end_at_once() -> None:
    print("onceward: work is still running after the grace period; exiting now", file=sys.stderr, flush=True)  # noqa: T201
    os._exit(_FAILED)
