"""Events: a page of the log, and the live stream that its script follows."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from onceward.errors import InvalidInput, OncewardError
from onceward.hub.console.visit import EVENTS, Visit
from onceward.hub.db_threads import in_thread
from onceward.hub.events import log
from onceward.hub.events.handshake import UNAUTHORIZED, CloseReason, Start, is_name, start
from onceward.hub.events.log import Event, Extent, Filter
from onceward.hub.events.sse import serve_stream
from onceward.hub.state import HubState

# Events that one page reads. A filter selects among these.
_WINDOW = 200
# A stream ends within two seconds after its session.
_CHECK_SECONDS = 0.5
_ID_DIGITS_MAX = 18


@dataclass(frozen=True, slots=True)
class EventView:
    """An event, with its data as indented JSON."""

    event: Event
    data: str


async def show(visit: Visit) -> Response:
    """Show the newest events that match the filter, or those before or after an id."""
    hub, wanted = visit.hub, _filter(visit)
    before, after = _id(visit, "before"), _id(visit, "after")

    def read() -> tuple[Extent, int, int, list[Event]]:
        with hub.database.read() as tx:
            extent = log.extent(tx)
            end = min(extent.last_event_id, before - 1) if before is not None else extent.last_event_id
            if after is not None:
                end = min(extent.last_event_id, after + _WINDOW)
            begin = after if after is not None else max(extent.oldest_event_id - 1, end - _WINDOW)
            return extent, begin, end, log.page(tx, begin, end, _WINDOW, wanted)

    extent, begin, end, events = await in_thread(read)
    return await visit.page(
        "events.html",
        events=[EventView(one, json.dumps(json.loads(one.data), indent=2, ensure_ascii=False)) for one in events[::-1]],
        begin=begin,
        end=end,
        extent=extent,
        name=visit.query("name"),
        topic=visit.query("topic"),
        is_live=before is None and end == extent.last_event_id,
        has_older=begin >= extent.oldest_event_id,
    )


async def stream(visit: Visit) -> Response:
    """Follow the log for the page's script, until the visitor's session ends."""
    hub, wanted = visit.hub, _filter(visit)
    last = visit.request.headers.get("last-event-id", "")
    after = int(last) if last.isascii() and last.isdigit() and len(last) <= _ID_DIGITS_MAX else _id(visit, "after")
    begin = start(await hub.feed.extent(), after)
    if isinstance(begin, CloseReason):
        raise InvalidInput("the resume point is after the last event of the log", (("after", "is in the future"),))
    return ConsoleStream(visit, hub, wanted, begin)


class ConsoleStream(Response):
    """SSE response that ends with the session of its visitor."""

    media_type = "text/event-stream"

    def __init__(self, visit: Visit, hub: HubState, wanted: Filter, begin: Start) -> None:
        super().__init__()
        self._visit = visit
        self._hub = hub
        self._wanted = wanted
        self._begin = begin

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        name, streams = self._visit.visitor.principal.name, self._hub.streams
        if not streams.enter(name):
            most = streams.max_per_principal
            refusal = Response(f"At most {most} streams may be open for one token name.", 429)
            await refusal(scope, receive, send)
            return
        watch = asyncio.create_task(self._watch())
        try:
            await serve_stream(self._hub.feed, self._wanted, self._begin, scope, receive, send, self)
        finally:
            watch.cancel()
            streams.leave(name)

    async def _watch(self) -> None:
        """End the stream when its visitor would have to log in again. While the database is down, it continues."""
        visit = self._visit
        while True:
            await asyncio.sleep(_CHECK_SECONDS)
            try:
                visitor = await visit.console.visitors.identify(visit.request)
            except OncewardError:
                continue
            if visitor is None or not visitor.may(EVENTS.part, *EVENTS.view):
                self._hub.feed.dismiss(self, UNAUTHORIZED)


def _filter(visit: Visit) -> Filter:
    topic, name = visit.query("topic"), visit.query("name")
    for field, text in (("topic", topic), ("name", name)):
        if text and not is_name(text):
            raise InvalidInput(f"{field} is not valid", ((field, "is not valid"),))
    return Filter(frozenset({topic} if topic else ()), frozenset({name} if name else ()))


def _id(visit: Visit, name: str) -> int | None:
    text = visit.query(name)
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= _ID_DIGITS_MAX):
        raise InvalidInput(f"{name} is not the id of an event", ((name, "is not the id of an event"),))
    return int(text)
