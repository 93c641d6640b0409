"""What our server can do beyond ASGI for the feed: take frames that are ready, and cut a connection.

A frame of a server is the same for every client, so the feed makes it once. Without this an event would be framed again
for each of them. A scope shows it by the extensions `onceward.frames` and `onceward.connection`; under another server
the feed does without.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.http11 import Request

from onceward.events.asgi import CONNECTION, FRAMES
from onceward.http import problem

_NO_REQUEST = problem.problem(
    400, "This is no HTTP request: its method is unknown, or its head or the lengths in its body cannot be read"
)
# A client that reads again within this time still gets the last bytes. Then nothing of the connection is left.
_CUT_SECONDS = 1.0


class FramesProtocol(WebSocketsSansIOProtocol):
    """uvicorn's WebSocket, which also takes `{"type": "onceward.frames", "data": bytes}`."""

    def handle_connect(self, event: Request) -> None:
        super().handle_connect(event)
        if not self.close_sent:
            # The application's task has been made and runs only after this.
            self.scope["extensions"] = _extended(self.scope["extensions"], {FRAMES: {}, CONNECTION: self})

    async def send(self, message: Any) -> None:
        if message["type"] != FRAMES:
            await super().send(message)
            if message["type"] == "websocket.http.response.body" and not message.get("more_body", False):
                # The client has its answer; uvicorn would log that there was none.
                self.handshake_complete = True
            return
        if not self.writable.is_set():
            await self.writable.wait()
        if self.disconnected or self.close_sent or self.transport.is_closing():
            raise ClientDisconnected
        self.transport.write(message["data"])

    def unsent(self) -> int:
        return self.transport.get_write_buffer_size()

    def cut(self, last: bytes, number: int, reason: str) -> None:
        if self.disconnected or self.transport.is_closing():
            self.transport.abort()
            return
        if not self.close_sent:
            self.conn.send_close(number, reason)
            self.close_sent = True
            self.transport.write(b"".join((last, *self.conn.data_to_send())))
        self.close_timer = self.loop.call_later(_CUT_SECONDS, self.transport.abort)


class HttpProtocol(HttpToolsProtocol):
    """uvicorn's HTTP, whose requests can be cut. What is no request is answered with a problem, too."""

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = _extended({}, {CONNECTION: _Cutting(self.transport)})

    def send_400_response(self, msg: str) -> None:
        """No application ever sees it: the parser has not found out what is asked."""
        del msg
        headers = [*self.server_state.default_headers, *_NO_REQUEST.headers, (b"connection", b"close")]
        head = b"".join(b"%s: %s\r\n" % header for header in headers)
        self.transport.write(b"HTTP/1.1 400 Bad Request\r\n" + head + b"\r\n" + _NO_REQUEST.body)
        self.transport.close()


def _extended(extensions: Any, ours: dict[str, object]) -> dict[str, Any]:
    """The server's own types know only extensions without content."""
    return {**(extensions or {}), **ours}


class _Cutting:
    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport

    def unsent(self) -> int:
        return self._transport.get_write_buffer_size()

    def cut(self, last: bytes, number: int, reason: str) -> None:
        """At once: a browser knows the id of the last event that it has read, and resumes by itself."""
        del last, number, reason
        self._transport.abort()
