"""One serving process: uvicorn as the hub needs it."""

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

from onceward.hub.address import BACKLOG
from onceward.hub.config import Config
from onceward.hub.connection_limits import limits_of
from onceward.hub.frames import FramesProtocol
from onceward.hub.http_protocol import HttpProtocol
from onceward.hub.workers import CLOSE_SECONDS, STOP_SIGNALS

# Makes the application, in the process that serves it. Importable by name, for workers.
Factory = Callable[[Config], Any]

# Longer than clients and proxies keep an idle connection, so that they close it first: a request that crosses our
# closing would be lost.
KEEP_ALIVE_SECONDS = 75
_FAILED = 1
# How soon a second Ctrl-C is noticed, as often as uvicorn itself looks.
_LOOK_SECONDS = 0.1


class _Streams(Protocol):
    """What this module knows of the hub's state."""

    async def stop_streams(self) -> None: ...


class Server(uvicorn.Server):
    """uvicorn's own, which also says when it is ready, ends streams first and never stops for longer than it may."""

    close_seconds = CLOSE_SECONDS

    def __init__(self, config: Config, factory: Factory | None, on_ready: Callable[[], None]) -> None:
        super().__init__(_uvicorn_config(config, factory))
        self._grace_seconds = config.hub.grace_seconds
        self._on_ready = on_ready
        self._hurried = False

    def serve_on(self, listener: socket.socket) -> None:
        # uvicorn raises a signal again once it has handled it; it must then find nothing left to do.
        for number in STOP_SIGNALS:
            signal.signal(number, self.handle_exit)
        try:
            self.run([listener])
        except SystemExit:
            # The reason was logged where it arose.
            raise SystemExit(_FAILED) from None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A second Ctrl-C ends the grace. uvicorn would leave the application as it is; ours is closed all the same."""
        super().handle_exit(sig, frame)
        self._hurried, self.force_exit = self._hurried or self.force_exit, False

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            # What is there by now stays to the end. The collector would walk through it every few thousand requests.
            gc.collect()
            gc.freeze()
            self._on_ready()

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
            # mypy knows a whole number here; uvicorn only hands it to asyncio.
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
                await asyncio.wait({task}, timeout=_LOOK_SECONDS)
            await task
        finally:
            task.cancel()


def _uvicorn_config(config: Config, factory: Factory | None) -> uvicorn.Config:
    if factory is None:
        from onceward.hub.app import create_app  # noqa: PLC0415  # only where it is served

        factory = create_app
    level = config.hub.log_level
    return uvicorn.Config(
        factory(config),
        # uvicorn calls it for each connection, and asks nothing else of it.
        http=functools.partial(HttpProtocol, limits=limits_of(config)),  # type: ignore[arg-type]
        ws=FramesProtocol,
        ws_max_size=config.hub.max_body_bytes,
        # A slow reader finds a ping only behind everything that it has yet to read, and would be cut off for that. The
        # feed looks after those that stand still, and the system after those that are gone.
        ws_ping_interval=None,
        ws_ping_timeout=None,
        # Events are small and many; compressing each costs more than it saves.
        ws_per_message_deflate=False,
        lifespan="on",
        interface="asgi3",
        # Logging is the hub's own, one line for each request; what uvicorn has to say beside that is for debugging.
        log_config=None,
        log_level="warning" if level == "info" else level,
        access_log=False,
        # Who a client is must not depend on a header that anybody can send.
        proxy_headers=False,
        server_header=False,
        workers=1,
        backlog=BACKLOG,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
    )


def _end_at_once() -> None:
    print("onceward: still busy after the grace period; ended at once", file=sys.stderr, flush=True)  # noqa: T201
    os._exit(_FAILED)
