"""Server-sent events: the feed as the body of an HTTP response.

An event is a plain message. Its data is the event object and its id is the event_id, so `EventSource` resumes by
itself. `hello_ok`, `caught_up`, `progress`, `gap` and `error` are named events; a heartbeat is a comment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable

from onceward.hub.events.asgi import Receive, Scope, Send, connection
from onceward.hub.events.feed import Feed
from onceward.hub.events.framing import BLOCKS
from onceward.hub.events.handshake import GONE, CloseReason, Start
from onceward.hub.events.log import Filter
from onceward.hub.events.session import FeedSession

HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    # Without this header, nginx holds events back until a buffer is full.
    (b"x-accel-buffering", b"no"),
)
# The milliseconds that a browser waits before it connects again.
_RETRY = b"retry: 1000\n\n"
_CLOSE_SECONDS = 1.0


async def serve_stream(
    feed: Feed, wanted: Filter, begin: Start, scope: Scope, receive: Receive, send: Send, owner: Hashable = None
) -> None:
    """Serve one response from its first byte to its end."""
    await send({"type": "http.response.start", "status": 200, "headers": list(HEADERS)})
    await send({"type": "http.response.body", "body": _RETRY, "more_body": True})
    server = connection(scope)

    async def write(data: bytes) -> None:
        await send({"type": "http.response.body", "body": data, "more_body": True})

    async def send_close(reason: CloseReason, cursor: int) -> None:
        last = BLOCKS.mark("error", cursor, code=reason.code, detail=reason.detail, after_event_id=cursor)
        try:
            async with asyncio.timeout(_CLOSE_SECONDS):
                await send({"type": "http.response.body", "body": last, "more_body": False})
        except TimeoutError:
            if server is not None:
                server.cut(b"", reason.number, "")
                # The server accepts an unfinished response only once it knows that the client has disconnected.
                await asyncio.wait({listener}, timeout=_CLOSE_SECONDS)
        except OSError:
            pass

    session = FeedSession(feed, BLOCKS, wanted, begin, write, None if server is None else server.unsent, owner)
    listener = asyncio.create_task(_listen(receive, session))
    try:
        await session.run(send_close)
    finally:
        listener.cancel()
        await asyncio.wait({listener})


async def _listen(receive: Receive, session: FeedSession) -> None:
    """End the session when the client disconnects."""
    while (await receive())["type"] != "http.disconnect":
        pass
    session.end(GONE)
