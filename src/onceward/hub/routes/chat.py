"""Chatting with a brain: messages come in, turns answer them, and nothing is done twice.

`/chat` and `/chat/stream` know duplicates by themselves, by what is stored with the message, and so are not behind the
idempotency middleware. They share one space of keys.
"""

from __future__ import annotations

import time
from typing import Annotated, Any

from fastapi import APIRouter, Header, Path, Query, Request, Response
from pydantic import BaseModel, Field
from starlette.responses import StreamingResponse

from onceward.core.canonical import Json
from onceward.core.request import key_of, wait_seconds_of
from onceward.core.text import written
from onceward.errors import InvalidInput, InvalidKey
from onceward.events.stream import HEADERS
from onceward.http import problem
from onceward.http.problem import Answer
from onceward.hub.auth import principal_of
from onceward.hub.body import Sent, StrictRoute
from onceward.hub.constraints import NOT_BLANK, text
from onceward.hub.state import Hub, hub_of
from onceward.hub.turn_stream import events_of, place_of
from onceward.hub.turns import TurnSeen
from onceward.turns.message import (
    AGENT_BYTES_MAX,
    CHANNEL_BYTES_MAX,
    CUSTOMER_BYTES_MAX,
    MESSAGE_ID_BYTES_MAX,
    SESSION_BYTES_MAX,
    UserMessage,
)
from onceward.turns.receive import Received, Status

router = APIRouter(route_class=StrictRoute, tags=["chat"])

PATHS = frozenset({"/chat", "/chat/stream"})

_BUSY = "Request is being processed. Retry in a moment."
_COMPLETED = "This request was already completed. Use non-streaming endpoint to get response."
_RETRY_AFTER = ((b"retry-after", b"1"),)

TurnId = Annotated[str, Path(description="The id of a turn.", max_length=255)]
LastEventId = Annotated[str | None, Header(description="Go on behind this event of the stream.")]


class ChatSent(Sent):
    message: str = Field(
        description="What the user says. With the metadata, at most turns.max_message_bytes.",
        json_schema_extra=NOT_BLANK,
    )
    # What is empty is not left out: nobody's tenant is filled in for a name that got lost.
    tenant_id: str | None = Field(
        None,
        description="1 to 64 of A-Z a-z 0-9 . _ -; without it, whose token it is.",
        min_length=1,
        json_schema_extra={"pattern": "^[A-Za-z0-9._-]{1,64}$"},
    )
    customer_id: str | None = Field(None, min_length=1, json_schema_extra=text(CUSTOMER_BYTES_MAX))
    agent_id: str | None = Field(None, json_schema_extra=text(AGENT_BYTES_MAX))
    channel: str | None = Field(
        None,
        description="How long to wait for more: web, whatsapp, …; api does not wait.",
        json_schema_extra=text(CHANNEL_BYTES_MAX),
    )
    message_id: str | None = Field(
        None,
        description="The channel's own id. What was stored under it is a duplicate.",
        json_schema_extra=text(MESSAGE_ID_BYTES_MAX),
    )
    session_key: str | None = Field(
        None,
        description="Which conversation. Without it: tenant, agent, customer, channel.",
        min_length=1,
        json_schema_extra=text(SESSION_BYTES_MAX),
    )
    idempotency_key: str | None = Field(
        None,
        description="The header Idempotency-Key counts more.",
        json_schema_extra={"pattern": r"^\s*[!-~]{1,255}\s*$"},
    )
    metadata: dict[str, Any] | None = None


class MessageShown(BaseModel):
    message_id: str
    content: str
    metadata: dict[str, Any]
    created_at: str


class ChatShown(BaseModel):
    status: str = Field(description="processing, complete, failed or superseded")
    turn_id: str
    response: Any = Field(None, description="What the brain says, when it is complete.")
    messages: list[MessageShown] | None = None
    duplicate_of: str | None = Field(None, description="The turn that has this message already.")
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
    turn_group_id: str = Field(description="Shared by all turns that took each other's place.")
    session_key: str
    status: str = Field(description="accumulating, processing, committing, complete, superseded or failed")
    messages: list[MessageShown]
    response: Any
    superseded_by: str | None
    tools: list[ToolShown]
    reason: str | None
    error: str | None
    attempts: int
    created_at: str
    completed_at: str | None


@router.post("/chat", response_model=ChatShown, summary="Say something, once")
async def chat(sent: ChatSent, request: Request) -> Response:
    hub = hub_of(request)
    principal = principal_of(request.scope)
    key = _key(sent, request)
    wait = wait_seconds_of(request.headers.getlist("prefer")) or 0
    received = await _receive(hub, principal, sent, key)
    if received.status is Status.MISMATCH:
        return _answered(problem.mismatch())
    is_keyed = key is not None and received.duplicate_of is not None
    seen: TurnSeen | None = None
    if wait and received.status is not Status.COMPLETE:
        seen = await hub.turns.finished(principal, received.turn_id, wait)
    elif received.status is Status.COMPLETE:
        seen = await hub.turns.seen(principal, received.turn_id)
    if is_keyed and (seen is None or not seen.is_over):
        turn_id = received.turn_id if seen is None else seen.turn.id
        where = (b"content-location", f"/turns/{turn_id}".encode())
        return _answered(problem.problem(409, _BUSY, headers=(*_RETRY_AFTER, where)))
    told: dict[str, Json] = {"status": "processing", "turn_id": received.turn_id}
    if seen is not None:
        told = seen.answer()
    if received.duplicate_of is not None and not is_keyed:
        told["duplicate_of"] = received.duplicate_of
    return _json(told)


@router.post(
    "/chat/stream",
    response_class=StreamingResponse,
    responses={200: {"content": {"text/event-stream": {}}, "description": "What the turn says, as it says it."}},
    summary="Say something and follow the answer",
)
async def chat_stream(
    sent: ChatSent,
    request: Request,
    last_event_id: LastEventId = None,
    replay: Annotated[bool, Query(description="Of a request that is complete: its recording.")] = False,
) -> Response:
    hub = hub_of(request)
    principal = principal_of(request.scope)
    behind = place_of(last_event_id)
    received = await _receive(hub, principal, sent, _key(sent, request))
    if received.status is Status.MISMATCH:
        return _answered(problem.mismatch())
    if received.status is Status.COMPLETE and behind is None and not replay:
        return _answered(problem.problem(409, _COMPLETED))
    if received.status is Status.NEW and received.tries_again is None:
        # Nothing of it was heard before: the id is one of another stream.
        behind = None
    return _stream(hub, principal, received.turn_id, behind)


@router.get("/turns/{turn_id}", response_model=TurnShown, summary="Look at a turn")
async def get_turn(turn_id: TurnId, request: Request) -> Response:
    seen = await hub_of(request).turns.seen(principal_of(request.scope), turn_id)
    return _json(seen.shown())


@router.get(
    "/turns/{turn_id}/events",
    response_class=StreamingResponse,
    responses={200: {"content": {"text/event-stream": {}}, "description": "What the turn says, as it says it."}},
    summary="Follow a turn",
)
async def follow_turn(turn_id: TurnId, request: Request, last_event_id: LastEventId = None) -> Response:
    hub = hub_of(request)
    principal = principal_of(request.scope)
    behind = place_of(last_event_id)
    await hub.turns.seen(principal, turn_id)
    return _stream(hub, principal, turn_id, behind)


async def _receive(hub: Hub, principal: str, sent: ChatSent, key: str | None) -> Received:
    began = time.perf_counter()
    said = {
        name: value
        for name, value in sent.model_dump(exclude={"message", "idempotency_key"}).items()
        if value is not None
    }
    received = await hub.turns.gateway.receive_message(
        UserMessage(content=sent.message, principal=principal, idempotency_key=key, **said)
    )
    hub.turns.observer.checked(
        key or received.message_id,
        _FOUND[received.status],
        cached=received.status is Status.COMPLETE,
        seconds=time.perf_counter() - began,
        key_type="auto_generated" if key is None else "client_provided",
    )
    return received


# In the words of the metrics.
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


def _stream(hub: Hub, principal: str, turn_id: str, behind: tuple[int, int] | None) -> Response:
    events = events_of(hub.turns, hub.database, principal, turn_id, behind)
    headers = {name.decode(): value.decode() for name, value in HEADERS if name != b"content-type"}
    # Where the same stream is without sending the message again.
    headers["content-location"] = f"/turns/{turn_id}/events"
    return StreamingResponse(events, media_type="text/event-stream", headers=headers)


def _answered(answer: Answer) -> Response:
    response = Response(answer.body, answer.status)
    response.raw_headers = [*answer.headers]
    return response


def _json(told: dict[str, Json]) -> Response:
    return Response(written(told), media_type="application/json")
