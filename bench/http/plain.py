"""The same application without a framework, to separate the cost of the middleware from that of the framework."""

from __future__ import annotations

import json
import threading
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

Scope: TypeAlias = dict[str, Any]
Message: TypeAlias = dict[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
# Not more precise, because frameworks type messages as dicts or as mappings.
App: TypeAlias = Callable[[Any, Any, Any], Awaitable[None]]


class Runs:
    """Handler that counts its runs, to prove that a fast contestant is also correct."""

    def __init__(self) -> None:
        self.count = 0
        # Some contestants run the handler in threads.
        self._lock = threading.Lock()

    def __call__(self) -> dict[str, object]:
        with self._lock:
            self.count += 1
            return {"paid": True, "number": self.count}


def plain_app(runs: Runs) -> App:
    """Return an application with the measured route. Other paths return the number of its runs."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _live(receive, send)
            return
        status, body = 200, str(runs.count).encode()
        if scope["path"] == "/payments":
            json.loads(await read_body(receive))
            status, body = 201, json.dumps(runs()).encode()
        headers = [(b"content-length", b"%d" % len(body)), (b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body, "more_body": False})

    return app


async def read_body(receive: Receive) -> bytes:
    message = await receive()
    body: bytes = message["body"]
    while message.get("more_body"):
        message = await receive()
        body += message["body"]
    return body


async def _live(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
