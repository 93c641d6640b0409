"""WebSocket of the feed, as a plain ASGI endpoint.

The client sends `hello`, and the hub sends `hello_ok` and then the events. `handshake.py` has the table of close codes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable

from onceward.errors import StoreClosed, StoreUnavailable
from onceward.hub.events.asgi import FRAMES as FRAMES_MESSAGE
from onceward.hub.events.asgi import Receive, Scope, Send, connection, takes_frames
from onceward.hub.events.feed import Feed
from onceward.hub.events.framing import FRAMES, texts
from onceward.hub.events.handshake import (
    GONE,
    NO_HELLO,
    STOPPING,
    UNAVAILABLE,
    CloseReason,
    Handshake,
    read_client_message,
    read_handshake,
    start,
)
from onceward.hub.events.session import FeedSession, Write

HANDSHAKE_SECONDS = 10.0
# How long a client may take to read the last bytes before the close.
_CLOSE_SECONDS = 1.0


async def serve_socket(feed: Feed, scope: Scope, receive: Receive, send: Send, owner: Hashable = None) -> None:
    """Serve one WebSocket from its handshake to its end."""
    await receive()
    try:
        await send({"type": "websocket.accept"})
        client = _Client(scope, send)
        handshake = await _receive_handshake(receive)
        if isinstance(handshake, CloseReason):
            await client.send_close(handshake)
            return
        try:
            begin = start(await feed.extent(), handshake.after, handshake.log_epoch)
        except StoreClosed:
            begin = STOPPING
        except StoreUnavailable:
            begin = UNAVAILABLE
        if isinstance(begin, CloseReason):
            await client.send_close(begin)
            return
    except OSError:
        return
    unsent = None if client.connection is None else client.connection.unsent
    session = FeedSession(feed, FRAMES, handshake.wanted, begin, client.write, unsent, owner)
    listener = asyncio.create_task(_listen(receive, session))
    try:
        await session.run(client.send_close)
    finally:
        listener.cancel()
        await asyncio.wait({listener})


async def _receive_handshake(receive: Receive) -> Handshake | CloseReason:
    try:
        async with asyncio.timeout(HANDSHAKE_SECONDS):
            message = await receive()
    except TimeoutError:
        return NO_HELLO
    if message["type"] == "websocket.disconnect":
        return GONE
    return read_handshake(message.get("text"))


async def _listen(receive: Receive, session: FeedSession) -> None:
    """Read the client's messages after its hello. Most clients send none."""
    while True:
        message = await receive()
        if message["type"] == "websocket.disconnect":
            session.end(GONE)
            return
        result = read_client_message(message.get("text"))
        if isinstance(result, CloseReason):
            session.end(result)
            return
        if result:
            session.request_ping()


class _Client:
    """Writes to a client: complete frames if the server accepts them, else message by message."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self.connection = connection(scope)
        self.write: Write = self._write_frames if takes_frames(scope) else self._write_messages
        self._send = send

    async def _write_frames(self, data: bytes) -> None:
        await self._send({"type": FRAMES_MESSAGE, "data": data})

    async def _write_messages(self, data: bytes) -> None:
        for text in texts(data):
            await self._send({"type": "websocket.send", "text": text})

    async def send_close(self, reason: CloseReason, cursor: int | None = None) -> None:
        """Send the error and the close. With a cursor, both contain the id to resume after."""
        if reason is GONE:
            return
        fields: dict[str, object] = {"code": reason.code, "detail": reason.detail}
        close_text = reason.code
        if cursor is not None:
            fields["after_event_id"] = cursor
            close_text = f"resume after {cursor}"
        last = FRAMES.mark("error", 0, **fields)
        try:
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self.write(last)
                last = b""
                await self._send({"type": "websocket.close", "code": reason.number, "reason": close_text})
        except TimeoutError:
            if self.connection is not None:
                self.connection.cut(last, reason.number, close_text)
        except OSError:
            pass
