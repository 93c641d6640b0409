"""The WebSocket of the feed, as a plain ASGI endpoint.

The client says `hello`, the hub answers `hello_ok`, and then the events come. `hello.py` has the table of the codes
with which it ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable

from onceward.errors import StoreClosed, StoreUnavailable
from onceward.events.asgi import FRAMES as FRAMES_MESSAGE
from onceward.events.asgi import Receive, Scope, Send, connection, takes_frames
from onceward.events.feed import Feed
from onceward.events.hello import GONE, NO_HELLO, STOPPING, UNAVAILABLE, Ending, Hello, read_hello, read_later, start
from onceward.events.session import Session, Write
from onceward.events.wire import FRAMES, texts

HELLO_SECONDS = 10.0
# How long a client that is about to be closed may take to read what stands before the close.
_FAREWELL_SECONDS = 1.0


async def serve_socket(feed: Feed, scope: Scope, receive: Receive, send: Send, visitor: Hashable = None) -> None:
    """One WebSocket from its handshake to its end."""
    await receive()
    try:
        await send({"type": "websocket.accept"})
        client = _Client(scope, send)
        hello = await _hello(receive)
        if isinstance(hello, Ending):
            await client.farewell(hello)
            return
        try:
            begin = start(await feed.extent(), hello.after, hello.log_epoch)
        except StoreClosed:
            begin = STOPPING
        except StoreUnavailable:
            begin = UNAVAILABLE
        if isinstance(begin, Ending):
            await client.farewell(begin)
            return
    except OSError:
        return
    unsent = None if client.connection is None else client.connection.unsent
    session = Session(feed, FRAMES, hello.wanted, begin, client.write, unsent, visitor)
    listener = asyncio.create_task(_listen(receive, session))
    try:
        await session.run(client.farewell)
    finally:
        listener.cancel()
        await asyncio.wait({listener})


async def _hello(receive: Receive) -> Hello | Ending:
    try:
        async with asyncio.timeout(HELLO_SECONDS):
            message = await receive()
    except TimeoutError:
        return NO_HELLO
    if message["type"] == "websocket.disconnect":
        return GONE
    return read_hello(message.get("text"))


async def _listen(receive: Receive, session: Session) -> None:
    """Everything that the client says after its hello; most say nothing."""
    while True:
        message = await receive()
        if message["type"] == "websocket.disconnect":
            session.end(GONE)
            return
        said = read_later(message.get("text"))
        if isinstance(said, Ending):
            session.end(said)
            return
        if said:
            session.ask()


class _Client:
    """How a client is written to: with ready-made frames where the server takes them, else message by message."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self.connection = connection(scope)
        self.write: Write = self._write_frames if takes_frames(scope) else self._write_messages
        self._send = send

    async def _write_frames(self, data: bytes) -> None:
        await self._send({"type": FRAMES_MESSAGE, "data": data})

    async def _write_messages(self, data: bytes) -> None:
        for text in texts(data):
            await self._send({"type": "websocket.send", "text": text})

    async def farewell(self, ending: Ending, cursor: int | None = None) -> None:
        """The error, and the close; with a cursor both say where to resume."""
        if ending is GONE:
            return
        fields: dict[str, object] = {"code": ending.code, "detail": ending.detail}
        reason = ending.code
        if cursor is not None:
            fields["after_event_id"] = cursor
            reason = f"resume after {cursor}"
        last = FRAMES.mark("error", 0, **fields)
        try:
            async with asyncio.timeout(_FAREWELL_SECONDS):
                await self.write(last)
                last = b""
                await self._send({"type": "websocket.close", "code": ending.number, "reason": reason})
        except TimeoutError:
            if self.connection is not None:
                self.connection.cut(last, ending.number, reason)
        except OSError:
            pass
