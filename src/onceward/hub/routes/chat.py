"""Chat routes: store a message, and return or stream the turn that answers it.

`/chat` and `/chat/stream` detect duplicates by the key stored with each message, so the idempotency middleware does not
cover them. They share one key space.
"""

from __future__ import annotations

import time
from typing import Annotated, Any

from fastapi import APIRouter, Header, Path, Query, Request, Response
from pydantic import BaseModel, Field
from starlette.responses import StreamingResponse

from onceward.core.canonical import Json
from onceward.core.json_text import written
from onceward.errors import InvalidInput, InvalidKey
from onceward.http import problem
from onceward.http.request.headers import key_of, wait_seconds_of
from onceward.hub.chat.stream import events_of, position_of
from onceward.hub.chat.turn_view import TurnView
from onceward.hub.events.sse import HEADERS
from onceward.hub.security.auth import principal_of
from onceward.hub.state import HubState, hub_of
from onceward.hub.turns.intake.receive import Received, Status
from onceward.hub.turns.model.message import (
    AGENT_BYTES_MAX,
    CHANNEL_BYTES_MAX,
    CUSTOMER_BYTES_MAX,
    MESSAGE_ID_BYTES_MAX,
    SESSION_BYTES_MAX,
    UserMessage,
)
from onceward.hub.web.constraints import NOT_BLANK, text
from onceward.hub.web.json_body import StrictBody, StrictRoute

router = APIRouter(route_class=StrictRoute, tags=["chat"])

PATHS = frozenset({"/chat", "/chat/stream"})

_BUSY = "Request is being processed. Retry in a moment."
_COMPLETED = "This request was already completed. Use non-streaming endpoint to get response."
_RETRY_AFTER = ((b"retry-after", b"1"),)

TurnId = Annotated[str, Path(description="The id of a turn.", max_length=255)]
LastEventId = Annotated[str | None, Header(description="Resume the stream after this event.")]


class ChatSent(StrictBody):
    message: str = Field(
        description="The user's message. Message and metadata together: at most `turns.max_message_bytes`.",
        json_schema_extra=NOT_BLANK,
    )
    # Refuse an empty id: the default is for a missing field, not for a name that the client lost.
    tenant_id: str | None = Field(
        None,
        description="1 to 64 characters of `A-Z a-z 0-9 . _ -`. Default: the principal of the token.",
        min_length=1,
        json_schema_extra={"pattern": "^[A-Za-z0-9._-]{1,64}$"},
    )
    customer_id: str | None = Field(None, min_length=1, json_schema_extra=text(CUSTOMER_BYTES_MAX))
    agent_id: str | None = Field(None, json_schema_extra=text(AGENT_BYTES_MAX))
    channel: str | None = Field(
        None,
        description="Determines how long to wait for more messages: `web`, `whatsapp`, …. `api` does not wait.",
        json_schema_extra=text(CHANNEL_BYTES_MAX),
    )
    message_id: str | None = Field(
        None,
        description="The channel's id of the message. A second message with the same id is a duplicate.",
        json_schema_extra=text(MESSAGE_ID_BYTES_MAX),
    )
    session_key: str | None = Field(
        None,
        description="Identifies the conversation. Default: tenant, agent, customer and channel.",
        min_length=1,
        json_schema_extra=text(SESSION_BYTES_MAX),
    )
    idempotency_key: str | None = Field(
        None,
        description="The `Idempotency-Key` header takes precedence.",
        json_schema_extra={"pattern": r"^\s*[!-~]{1,255}\s*$"},
    )
    metadata: dict[str, Any] | None = None


class MessageShown(BaseModel):
    message_id: str
    content: str
    metadata: dict[str, Any]
    created_at: str


class ChatShown(BaseModel):
    status: str = Field(description="`processing`, `complete`, `failed` or `superseded`.")
    turn_id: str
    response: Any = Field(None, description="The brain's response, once the turn is complete.")
    messages: list[MessageShown] | None = None
    duplicate_of: str | None = Field(None, description="The turn that already contains this message.")
    superseded_by: str | None = None
    error: str | None = None


class ToolShown(BaseModel):
    tool: str
    key: str
    effect: str
    status: str
    arguments: dict[str, Any]
    receipt: Any
    created_at: str


class TurnShown(BaseModel):
    turn_id: str
    turn_group_id: str = Field(description="Shared by all turns that replaced each other.")
    session_key: str
    status: str = Field(description="`accumulating`, `processing`, `committing`, `complete`, `superseded` or `failed`.")
    messages: list[MessageShown]
    response: Any
    superseded_by: str | None
    tools: list[ToolShown]
    reason: str | None
    error: str | None
    attempts: int
    created_at: str
    completed_at: str | None


@router.post("/chat", response_model=ChatShown, summary="Send a message")
async def chat(sent: ChatSent, request: Request) -> Response:
    hub = hub_of(request)
    principal = principal_of(request.scope)
    key = _key(sent, request)
    wait = wait_seconds_of(request.headers.getlist("prefer")) or 0
    received = await _receive(hub, principal, sent, key)
    if received.status is Status.MISMATCH:
        return _problem_response(problem.mismatch())
    is_keyed = key is not None and received.duplicate_of is not None
    view: TurnView | None = None
    if wait and received.status is not Status.COMPLETE:
        stored = received.turn if received.status is Status.NEW else None
        view = await hub.turns.finished(principal, received.turn_id, wait, stored)
    elif received.status is Status.COMPLETE:
        view = await hub.turns.read_turn(principal, received.turn_id)
    if is_keyed and (view is None or not view.is_over):
        turn_id = received.turn_id if view is None else view.turn.id
        where = (b"content-location", f"/turns/{turn_id}".encode())
        return _problem_response(problem.problem(409, _BUSY, headers=(*_RETRY_AFTER, where)))
    content: dict[str, Json] = {"status": "processing", "turn_id": received.turn_id}
    if view is not None:
        content = view.chat_response()
    if received.duplicate_of is not None and not is_keyed:
        content["duplicate_of"] = received.duplicate_of
    return _json(content)


@router.post(
    "/chat/stream",
    response_class=StreamingResponse,
    responses={200: {"content": {"text/event-stream": {}}, "description": "The events of the turn as they happen."}},
    summary="Send a message and stream the response",
)
async def chat_stream(
    sent: ChatSent,
    request: Request,
    last_event_id: LastEventId = None,
    replay: Annotated[bool, Query(description="Stream the recorded response of a completed request.")] = False,
) -> Response:
    hub = hub_of(request)
    principal = principal_of(request.scope)
    behind = position_of(last_event_id)
    received = await _receive(hub, principal, sent, _key(sent, request))
    if received.status is Status.MISMATCH:
        return _problem_response(problem.mismatch())
    if received.status is Status.COMPLETE and behind is None and not replay:
        return _problem_response(problem.problem(409, _COMPLETED))
    if received.status is Status.NEW and received.tries_again is None:
        # A new turn has sent nothing yet: the client's Last-Event-ID belongs to another stream.
        behind = None
    return _stream(hub, principal, received.turn_id, behind)


@router.get("/turns/{turn_id}", response_model=TurnShown, summary="Get a turn")
async def get_turn(turn_id: TurnId, request: Request) -> Response:
    view = await hub_of(request).turns.read_turn(principal_of(request.scope), turn_id)
    return _json(view.json())


@router.get(
    "/turns/{turn_id}/events",
    response_class=StreamingResponse,
    responses={200: {"content": {"text/event-stream": {}}, "description": "The events of the turn as they happen."}},
    summary="Follow a turn (SSE)",
)
async def follow_turn(turn_id: TurnId, request: Request, last_event_id: LastEventId = None) -> Response:
    hub = hub_of(request)
    principal = principal_of(request.scope)
    behind = position_of(last_event_id)
    await hub.turns.read_turn(principal, turn_id)
    return _stream(hub, principal, turn_id, behind)


async def _receive(hub: HubState, principal: str, sent: ChatSent, key: str | None) -> Received:
    began = time.perf_counter()
    fields = {
        name: value
        for name, value in sent.model_dump(exclude={"message", "idempotency_key"}).items()
        if value is not None
    }
    received = await hub.turns.gateway.receive_message(
        UserMessage(content=sent.message, principal=principal, idempotency_key=key, **fields)
    )
    hub.turns.observer.checked(
        key or received.message_id,
        _FOUND[received.status],
        cached=received.status is Status.COMPLETE,
        seconds=time.perf_counter() - began,
        key_type="auto_generated" if key is None else "client_provided",
    )
    return received


# The `status` label of idempotency_check_total.
_FOUND = {
    Status.NEW: "processing_started",
    Status.PROCESSING: "duplicate_processing",
    Status.COMPLETE: "duplicate_completed",
    Status.MISMATCH: "fingerprint_mismatch",
}


def _key(sent: ChatSent, request: Request) -> str | None:
    draft, older = (request.headers.getlist(name) for name in ("idempotency-key", "x-idempotency-key"))
    try:
        if draft or older:
            return key_of(draft, older)
        return None if sent.idempotency_key is None else key_of([sent.idempotency_key], [])
    except InvalidKey as error:
        field = "Idempotency-Key" if draft else "X-Idempotency-Key" if older else "idempotency_key"
        raise InvalidInput(str(error), ((field, str(error)),)) from error


def _stream(hub: HubState, principal: str, turn_id: str, behind: tuple[int, int] | None) -> Response:
    events = events_of(hub.turns, hub.database, principal, turn_id, behind)
    headers = {name.decode(): value.decode() for name, value in HEADERS if name != b"content-type"}
    # A client can resume the stream there without sending the message again.
    headers["content-location"] = f"/turns/{turn_id}/events"
    return StreamingResponse(events, media_type="text/event-stream", headers=headers)


def _problem_response(problem_response: problem.Response) -> Response:
    response = Response(problem_response.body, problem_response.status)
    response.raw_headers = [*problem_response.headers]
    return response


def _json(content: dict[str, Json]) -> Response:
    return Response(written(content), media_type="application/json")
