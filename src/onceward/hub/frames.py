"""What our server can do beyond ASGI for the feed: take frames that are ready, and cut a connection.

A frame of a server is the same for every client, so the feed makes it once. Without this an event would be framed again
for each of them. A scope shows it by the extensions `onceward.frames` and `onceward.connection`; under another server
the feed does without.
"""

from __future__ import annotations

from typing import Any

from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.http11 import Request

from onceward.events.asgi import CONNECTION, FRAMES
from onceward.hub.http_protocol import extended

# A client that reads again within this time still gets the last bytes. Then nothing of the connection is left.
_CUT_SECONDS = 1.0


class FramesProtocol(WebSocketsSansIOProtocol):
    """uvicorn's WebSocket, which also takes `{"type": "onceward.frames", "data": bytes}`."""

    def handle_connect(self, event: Request) -> None:
        super().handle_connect(event)
        if not self.close_sent:
            # The application's task has been made and runs only after this.
            self.scope["extensions"] = extended(self.scope["extensions"], {FRAMES: {}, CONNECTION: self})

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
