"""Extensions of the server's WebSocket for the feed: sending encoded frames, and aborting a connection.

A frame from a server is the same for every client, so the feed encodes it once instead of once per client. The
extensions `onceward.frames` and `onceward.connection` in the scope show this. Under another server, the feed works
without them.
"""

from __future__ import annotations

from typing import Any

from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.http11 import Request

from onceward.hub.events.asgi import CONNECTION, FRAMES
from onceward.hub.server.http_protocol import extended

# A client that starts to read again within this time still gets the last bytes. Then the connection is aborted.
_CUT_SECONDS = 1.0


class FramesProtocol(WebSocketsSansIOProtocol):
    """uvicorn's WebSocket protocol, which also accepts `{"type": "onceward.frames", "data": bytes}`."""

    def handle_connect(self, event: Request) -> None:
        super().handle_connect(event)
        if not self.close_sent:
            # The application's task has been created, but runs only after this.
            self.scope["extensions"] = extended(self.scope["extensions"], {FRAMES: {}, CONNECTION: self})

    async def send(self, message: Any) -> None:
        if message["type"] != FRAMES:
            await super().send(message)
            if message["type"] == "websocket.http.response.body" and not message.get("more_body", False):
                # The client has its response. Without this, uvicorn would log that none was sent.
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
