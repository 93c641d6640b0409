"""An ASGI client without a server: one request, or one WebSocket, and the complete response."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from onceward.http.asgi_types import App, Message

LOCAL_CLIENT = ("127.0.0.1", 50_000)
REMOTE_CLIENT = ("203.0.113.9", 50_000)
HOST = ((b"host", b"localhost:8787"),)
JSON = ((b"content-type", b"application/json"),)

Headers = Sequence[tuple[bytes, bytes]]


@dataclass(slots=True)
class AsgiResponse:
    """A response. `taken` counts the messages that the application received."""

    messages: list[Message] = field(default_factory=list)
    taken: int = 0

    @property
    def start(self) -> Message:
        return next(one for one in self.messages if one["type"].endswith("http.response.start"))

    @property
    def status(self) -> int:
        return int(self.start["status"])

    @property
    def headers(self) -> dict[str, str]:
        return {name.decode(): value.decode() for name, value in self.start["headers"]}

    @property
    def body(self) -> bytes:
        return b"".join(one.get("body", b"") for one in self.messages if one["type"].endswith("http.response.body"))

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        """The code of a problem, after a check that the response is one."""
        assert self.headers["content-type"] == "application/problem+json"
        assert self.json["status"] == self.status
        assert self.json["type"] == f"urn:onceward:problem:{self.json['code']}"
        assert "Traceback" not in self.json["detail"]
        return str(self.json["code"])

    @property
    def types(self) -> list[str]:
        return [one["type"] for one in self.messages]


def request(
    method: str, path: str, headers: Headers = (), *, host: Headers = HOST, client: Any = LOCAL_CLIENT, **more: Any
) -> dict[str, Any]:
    """The scope of a request."""
    path, _, query = path.partition("?")
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [*host, *headers],
        "client": client,
        "state": {},
        **more,
    }


def websocket(path: str, headers: Headers = (), *, offered: Sequence[str] = (), **more: Any) -> dict[str, Any]:
    """The scope of a WebSocket."""
    scope = request("GET", path, headers, **more)
    del scope["method"]
    extensions = more.get("extensions", {"websocket.http.response": {}})
    return {**scope, "type": "websocket", "scheme": "ws", "subprotocols": [*offered], "extensions": extensions}


def send_request(app: App, scope: dict[str, Any], sent: Iterable[Message] | bytes = b"") -> AsgiResponse:
    """Send these messages, or this body, to the application and return its response."""
    if scope["type"] == "websocket":
        messages = iter([{"type": "websocket.connect"}, *(() if isinstance(sent, bytes) else sent)])
    elif isinstance(sent, bytes):
        messages = iter([{"type": "http.request", "body": sent, "more_body": False}])
    else:
        messages = iter(sent)
    response = AsgiResponse()

    async def receive() -> Message:
        response.taken += 1
        message = next(messages, None)
        if message is None and scope["type"] == "http":
            # The client waits for its response.
            await asyncio.Event().wait()
        return message or {"type": "websocket.disconnect", "code": 1001}

    async def send(message: Message) -> None:
        response.messages.append(message)

    async def run() -> None:
        await app(scope, receive, send)

    asyncio.run(run())
    return response


def bearer(text: str) -> Headers:
    return ((b"authorization", b"Bearer " + text.encode()),)
