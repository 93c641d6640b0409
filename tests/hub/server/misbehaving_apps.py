"""Applications that behave in a way that a server must cope with: `python -m tests.hub.server.misbehaving_apps NAME serve …`."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, MutableMapping
from types import FrameType
from typing import Any

from onceward.hub.config.config import Config, load
from onceward.hub.server.process import Server
from onceward.hub.server.serve import serve

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class State:
    """The part of a hub's state that the server uses: streams that end on request."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.stopping = asyncio.Event()

    async def stop_streams(self) -> None:
        say("streams are stopped")
        self.stopping.set()
        if self.name == "endless-streams":
            await asyncio.Event().wait()


class App:
    """`GET /pid`, `/frozen` (how many objects the collector leaves alone) and a stream at `/stream`; `/slow` ends when
    its client has sent the whole body. Other names describe what the application does.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(scope, receive, send)
            return
        hub: State = scope["state"]["hub"]
        await send({"type": "http.response.start", "status": 200, "headers": []})
        if scope["path"] == "/stream":
            await send({"type": "http.response.body", "body": b"begun\n", "more_body": True})
            await hub.stopping.wait()
            await send({"type": "http.response.body", "body": b"resume from 7\n", "more_body": False})
        elif scope["path"] == "/slow":
            await send({"type": "http.response.body", "body": b"begun\n", "more_body": True})
            while (await receive()).get("more_body"):
                pass
            say("the slow request is done")
            await send({"type": "http.response.body", "body": b"done\n", "more_body": False})
        elif scope["path"] == "/thread":
            threading.Thread(target=threading.Event().wait).start()
            await send({"type": "http.response.body", "body": b"begun\n"})
        elif scope["path"] == "/frozen":
            tuned = f"{gc.get_freeze_count()} {gc.get_threshold()[0]} {sys.getswitchinterval()}"
            await send({"type": "http.response.body", "body": tuned.encode()})
        elif scope["path"] == "/die":
            os.kill(os.getpid(), signal.SIGKILL)
        else:
            await send({"type": "http.response.body", "body": str(os.getpid()).encode()})

    async def _live(self, scope: Message, receive: Receive, send: Send) -> None:
        await receive()
        if self.name == "fails-to-start":
            await send({"type": "lifespan.startup.failed", "message": "the roof is gone"})
            return
        if self.name == "slow-start":
            signalled = stop_signalled()
            say("starting")
            await signalled.wait()
        scope["state"]["hub"] = State(self.name)
        await send({"type": "lifespan.startup.complete"})
        await receive()
        say("closed")
        await send({"type": "lifespan.shutdown.complete"})


def stop_signalled() -> asyncio.Event:
    """Return an event that is set by SIGTERM, after the server has handled it."""
    loop, signalled = asyncio.get_running_loop(), asyncio.Event()
    server_handler = signal.getsignal(signal.SIGTERM)
    assert callable(server_handler)

    def on_signal(number: int, frame: FrameType | None) -> None:
        server_handler(number, frame)
        loop.call_soon_threadsafe(signalled.set)

    signal.signal(signal.SIGTERM, on_signal)
    server = getattr(server_handler, "__self__", None)
    assert isinstance(server, Server)
    if server.should_exit:
        # The signal came earlier.
        signalled.set()
    return signalled


def say(text: str) -> None:
    sys.stdout.write(f"app: {text}\n")
    sys.stdout.flush()


class SignalledAtItsEnd:
    def __del__(self) -> None:
        signal.raise_signal(signal.SIGTERM)


def make(config: Config, name: str) -> App:  # noqa: ARG001  # every factory gets one
    if name == "signalled-before-start":
        with contextlib.suppress(BaseException):
            signal.raise_signal(signal.SIGTERM)
    elif name == "signalled-in-a-callback":
        SignalledAtItsEnd()
    return App(name)


if __name__ == "__main__":
    name, *arguments = sys.argv[1:]
    flags = {("hub", flag[2:].replace("-", "_")): value for flag, value in zip(*[iter(arguments)] * 2, strict=True)}
    Server.close_seconds = float(os.environ.pop("CLOSE_SECONDS", Server.close_seconds))
    serve(load(None, os.environ, flags), functools.partial(make, name=name))
