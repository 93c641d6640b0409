"""The SSE stream of the feed, as the body of an HTTP response.

An event is a plain message whose data is the event object and whose id is its event_id, so `EventSource` resumes by
itself. `hello_ok`, `caught_up`, `progress`, `gap` and `error` are named events; a heartbeat is a comment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable

from onceward.events.asgi import Receive, Scope, Send, connection
from onceward.events.feed import Feed
from onceward.events.hello import GONE, Ending, Start
from onceward.events.log import Filter
from onceward.events.session import Session
from onceward.events.wire import BLOCKS

HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    # Without it nginx holds events back until a buffer is full.
    (b"x-accel-buffering", b"no"),
)
# How long a browser waits before it connects again.
_RETRY = b"retry: 1000\n\n"
_FAREWELL_SECONDS = 1.0


async def serve_stream(
    feed: Feed, wanted: Filter, begin: Start, scope: Scope, receive: Receive, send: Send, visitor: Hashable = None
) -> None:
    """One response from its first byte to its end."""
    await send({"type": "http.response.start", "status": 200, "headers": list(HEADERS)})
    await send({"type": "http.response.body", "body": _RETRY, "more_body": True})
    server = connection(scope)

    async def write(data: bytes) -> None:
        await send({"type": "http.response.body", "body": data, "more_body": True})

    async def farewell(ending: Ending, cursor: int) -> None:
        last = BLOCKS.mark("error", cursor, code=ending.code, detail=ending.detail, after_event_id=cursor)
        try:
            async with asyncio.timeout(_FAREWELL_SECONDS):
                await send({"type": "http.response.body", "body": last, "more_body": False})
        except TimeoutError:
            if server is not None:
                server.cut(b"", ending.number, "")
                # The server is content with an unfinished response only when it knows that the client is gone.
                await asyncio.wait({listener}, timeout=_FAREWELL_SECONDS)
        except OSError:
            pass

    session = Session(feed, BLOCKS, wanted, begin, write, None if server is None else server.unsent, visitor)
    listener = asyncio.create_task(_listen(receive, session))
    try:
        await session.run(farewell)
    finally:
        listener.cancel()
        await asyncio.wait({listener})


async def _listen(receive: Receive, session: Session) -> None:
    """Wait for the client to go."""
    while (await receive())["type"] != "http.disconnect":
        pass
    session.end(GONE)
