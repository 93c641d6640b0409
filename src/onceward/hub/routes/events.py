"""Event routes: pages of the event log, the SSE stream, and the WebSocket `/ws`."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request, Response
from pydantic import BaseModel
from starlette.routing import WebSocketRoute
from starlette.types import Receive, Scope, Send

from onceward.errors import InvalidInput
from onceward.hub.events.feed import Feed
from onceward.hub.events.handshake import CloseReason, Start, is_name, start
from onceward.hub.events.log import PAGE_MAX, Filter
from onceward.hub.events.paging import LogPage, read_page
from onceward.hub.events.sse import serve_stream
from onceward.hub.events.websocket import serve_socket
from onceward.hub.security.auth import credentials_of
from onceward.hub.state import hub_of

_LIMIT_DEFAULT = 100
# An id has at most this many digits; parsing more would only take time.
_ID_DIGITS_MAX = 19


class EventShown(BaseModel):
    """One event of the log."""

    event_id: int
    name: str
    topic_id: str | None
    entity_type: str
    entity_id: str
    data: dict[str, Any]
    created_at: str


class GapShown(BaseModel):
    """Events that retention has deleted: those after `after_event_id` and before `oldest_event_id`."""

    after_event_id: int
    oldest_event_id: int


class EventPageShown(BaseModel):
    """One page of the event log. `next_after` is the cursor for the next page."""

    events: list[EventShown]
    next_after: int
    has_more: bool
    gap: GapShown | None = None


class EventStream(Response):
    """SSE response that follows the event log until one side ends it."""

    media_type = "text/event-stream"

    def __init__(self, feed: Feed, wanted: Filter, begin: Start) -> None:
        super().__init__()
        self._feed = feed
        self._wanted = wanted
        self._begin = begin

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await serve_stream(self._feed, self._wanted, self._begin, scope, receive, send, credentials_of(scope))


class _Socket:
    """Plain ASGI endpoint: Starlette's `WebSocket` refuses messages that it does not know, such as frames."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await serve_socket(scope["app"].state.hub.feed, scope, receive, send, credentials_of(scope))


router = APIRouter(tags=["events"])
router.routes.append(WebSocketRoute("/ws", _Socket(), name="follow_events"))

_After = Annotated[int, Query(ge=0, description="The cursor: only events after this id.")]
_TopicId = Annotated[str | None, Query(min_length=1, description="Only events of this topic.")]


@router.get("/api/v1/events", summary="List events", response_model=None, responses={200: {"model": EventPageShown}})
def list_events(
    request: Request,
    after: _After = 0,
    limit: Annotated[int, Query(ge=1, le=PAGE_MAX)] = _LIMIT_DEFAULT,
    topic_id: _TopicId = None,
) -> Response:
    """Return a page of the event log, oldest first. To read all of it, continue with `next_after` while `has_more`."""
    wanted = _wanted(topic_id)
    page = read_page(hub_of(request).database, after, limit, wanted)
    if after > page.extent.last_event_id:
        raise _future(page.extent.last_event_id)
    return Response(_body(page, after), media_type="application/json")


@router.get(
    "/api/v1/events/stream",
    summary="Follow events (SSE)",
    status_code=200,
    response_class=EventStream,
    response_model=None,
    responses={200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}},
)
async def stream_events(
    request: Request,
    after: Annotated[
        int | None, Query(ge=0, description="The cursor: only events after this id. Default: only new events.")
    ] = None,
    topic_id: _TopicId = None,
    last_event_id: Annotated[
        str | None, Header(description="The same as `after`, and takes precedence over it.")
    ] = None,
) -> Response:
    """Stream every event after the cursor, once and in order, as server-sent events until one side ends the stream."""
    wanted = _wanted(topic_id)
    if last_event_id is not None:
        if not (last_event_id.isascii() and last_event_id.isdigit() and len(last_event_id) <= _ID_DIGITS_MAX):
            raise InvalidInput("Last-Event-ID is not an event id", (("Last-Event-ID", "is not an event id"),))
        after = int(last_event_id)
    feed = hub_of(request).feed
    now = await feed.extent()
    begin = start(now, after)
    if isinstance(begin, CloseReason):
        raise _future(now.last_event_id)
    return EventStream(feed, wanted, begin)


def _wanted(topic_id: str | None) -> Filter:
    if topic_id is None:
        return Filter()
    if not is_name(topic_id):
        raise InvalidInput("topic_id is not a topic id", (("topic_id", "is not a topic id"),))
    return Filter(topics=frozenset({topic_id}))


def _future(last: int) -> InvalidInput:
    why = f"is after the last event of the log, which is {last}"
    return InvalidInput(f"the cursor {why}", (("after", why),))


def _body(page: LogPage, after: int) -> bytes:
    """Insert each event's JSON as it is stored, without encoding it again."""
    gap = ""
    if page.after > after:
        gap = f',"gap":{{"after_event_id":{after},"oldest_event_id":{page.extent.oldest_event_id}}}'
    events = ",".join(event.json for event in page.events)
    more = "true" if page.has_more else "false"
    return f'{{"events":[{events}],"next_after":{page.end},"has_more":{more}{gap}}}'.encode()
