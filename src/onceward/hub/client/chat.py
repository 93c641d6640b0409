"""`hub.chat`: say something to the hub's brain, look at the turn that answers it, and follow what it says.

A stream that breaks is resumed behind the last event that was given out. An answer that began anew is told by the event
`interrupted`: what came before it is no part of the answer.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import random
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, TypeAlias, TypedDict, Unpack, cast
from uuid import uuid4

import httpx

from onceward.core.canonical import Json
from onceward.errors import UnexpectedAnswer
from onceward.http.events import Events, is_event_stream
from onceward.http.retry import Patience
from onceward.hub.client import answers
from onceward.hub.client.wire import SECONDS_MAX, Wire, as_json, path_of
from onceward.terms import check_seconds

# The hub sends a sign of life every 15 seconds: one may be late, a second lost on the way.
SILENCE_SECONDS = 45.0
# How long one request waits for its turn. What takes longer is followed.
_ASK_SECONDS = 10
# There is no last try: a hub that does not answer is the wire's to give up.
_PATIENCE = Patience(tries=sys.maxsize)
_ENDED = b"\n\n"
_UNFINISHED = frozenset({"accumulating", "processing", "committing"})

# Opens the stream behind the event of this id, or at its beginning; of the turn of this id, if it is known by now.
_Connect: TypeAlias = Callable[[str | None, str | None], Awaitable[httpx.Response]]

_log = logging.getLogger("onceward.hub.client")
_draw = random.SystemRandom().random


class Saying(TypedDict, total=False):
    """What may be said of a message; what is left out is filled in by the hub."""

    tenant_id: str
    customer_id: str
    agent_id: str
    channel: str
    message_id: str
    session_key: str
    metadata: dict[str, Json]


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """A message that a turn carries."""

    message_id: str
    content: str
    metadata: dict[str, Json]
    created_at: str


@dataclass(frozen=True, slots=True)
class ChatAnswer:
    """How it stands with a message: `status` is `processing`, `complete`, `failed` or `superseded`.

    `duplicate_of` names the turn that had this message already. `error` says why a turn failed.
    """

    status: str
    turn_id: str
    response: Json = None
    messages: tuple[ChatMessage, ...] = ()
    duplicate_of: str | None = None
    superseded_by: str | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class ToolSeen:
    """A call of a tool that was allowed to have an effect."""

    tool: str
    key: str
    effect: str
    status: str
    arguments: dict[str, Json]
    receipt: Json
    created_at: str


@dataclass(frozen=True, slots=True)
class TurnSeen:
    """A turn as it was when somebody looked. Times are text in UTC."""

    turn_id: str
    turn_group_id: str
    session_key: str
    status: str
    messages: tuple[ChatMessage, ...]
    response: Json
    superseded_by: str | None
    tools: tuple[ToolSeen, ...]
    reason: str | None
    error: str | None
    attempts: int
    created_at: str
    completed_at: str | None


@dataclass(frozen=True, slots=True)
class ChatEvent:
    """One event of a turn's stream: `delta`, `tool`, `done`, `superseded` or `interrupted`."""

    id: str
    name: str
    data: dict[str, Any]

    @property
    def text(self) -> str:
        """The part of the answer that a `delta` is; empty for others."""
        return str(self.data.get("text", "")) if self.name == "delta" else ""

    @property
    def is_last(self) -> bool:
        """Whether the turn is over with it. A turn that failed is interrupted with an `error`."""
        return self.name in {"done", "superseded"} or (self.name == "interrupted" and "error" in self.data)


class Chat:
    """Made by `Hub`."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    async def say(
        self,
        message: str,
        *,
        wait_seconds: float = 0.0,
        idempotency_key: str | None = None,
        **about: Unpack[Saying],
    ) -> ChatAnswer:
        """Say something, once, and wait so long for the answer; without it the answer is `processing`.

        Each call is a message of its own, also with the same words, unless it has the same `idempotency_key` or
        `message_id`. `Busy` when the turn of a message that was sent before under the same key is not over yet.
        """
        deadline = time.monotonic() + _wait(wait_seconds)
        request = self._message("/chat", message, idempotency_key, about)
        if wait_seconds >= 1:
            request.headers["Prefer"] = f"wait={min(int(wait_seconds), _ASK_SECONDS)}"
            _be_silent(self._wire, request, self._wire.try_seconds + _ASK_SECONDS)
        said = answers.read(await self._wire.send(request), _answer)
        left = deadline - time.monotonic()
        return said if said.status != "processing" or left <= 0 else await self.finished(said.turn_id, left)

    async def turn(self, turn_id: str) -> TurnSeen:
        """A turn as it is now; `NotFound` when there is none."""
        return await self._wire.look(path_of("/turns", "turn", turn_id), {}, _turn)

    async def finished(self, turn_id: str, wait_seconds: float = 60.0) -> ChatAnswer:
        """The turn when it is over, or the one that took its place; as it is after so many seconds."""
        try:
            async with asyncio.timeout(_wait(wait_seconds)):
                while True:
                    async for event in self.follow(turn_id):
                        last = event
                    if last.name != "superseded":
                        break
                    turn_id = str(last.data["superseded_by"])
        except TimeoutError:
            pass
        return _of_turn(await self.turn(turn_id))

    def stream(
        self, message: str, *, idempotency_key: str | None = None, **about: Unpack[Saying]
    ) -> AsyncGenerator[ChatEvent, None]:
        """Say something, once, and give what is said to it, until its turn is over.

        With the key of a message that was sent before, its stream from the beginning.
        """
        key = idempotency_key or uuid4().hex
        if idempotency_key is None:
            # Keys are forgotten some time after their turn; the id of a message is not, however late a line is back.
            about = {"message_id": key, **about}

        async def connect(last: str | None, turn_id: str | None) -> httpx.Response:
            if turn_id is not None:
                # A message of a turn that has failed would be tried again.
                return await self._open(self._wire.get(_events_path(turn_id), {}), last)
            request = self._message("/chat/stream", message, key, about)
            # Without it, an answer that was complete before anything of it was heard would be refused.
            request.url = request.url.copy_merge_params({"replay": "1"})
            return await self._open(request, last)

        return followed(connect, None)

    def follow(self, turn_id: str, *, after: str | None = None) -> AsyncGenerator[ChatEvent, None]:
        """What a turn says, behind the event of the id `after` or from its beginning, until it is over."""
        path = _events_path(turn_id)

        async def connect(last: str | None, _turn_id: str | None) -> httpx.Response:
            return await self._open(self._wire.get(path, {}), last)

        return followed(connect, after)

    def _message(self, path: str, message: str, key: str | None, about: Saying) -> httpx.Request:
        request = self._wire.request("POST", path, as_json({"message": message, **about}), key)
        request.headers["Content-Type"] = "application/json"
        return request

    async def _open(self, request: httpx.Request, last: str | None) -> httpx.Response:
        request.headers.update({"Accept": "text/event-stream", "Accept-Encoding": "identity"})
        if last is not None:
            request.headers["Last-Event-ID"] = last
        _be_silent(self._wire, request, SILENCE_SECONDS)
        return await self._wire.open(request, _is_stream)


def _events_path(turn_id: str) -> str:
    return path_of("/turns", "turn", turn_id, "/events")


def _wait(seconds: float) -> float:
    return check_seconds("wait_seconds", seconds, SECONDS_MAX)


def _be_silent(wire: Wire, request: httpx.Request, seconds: float) -> None:
    """Let the hub be silent for so long on this one."""
    timeout = httpx.Timeout(wire.try_seconds, read=seconds)
    request.extensions = {**request.extensions, "timeout": timeout.as_dict()}


def _is_stream(response: httpx.Response) -> bool:
    return response.is_success and is_event_stream(response.headers.get("Content-Type", "").encode())


async def followed(connect: _Connect, last: str | None) -> AsyncGenerator[ChatEvent, None]:
    """The events behind the one of the id `last`, over as many connections as it takes, up to the last one."""
    breaks, turn_id = 0, None
    while True:
        response = await connect(last, turn_id)
        try:
            async with aclosing(_events(response)) as events:
                async for event in events:
                    breaks = 0
                    # What is interrupted begins anew, and so does whoever listens.
                    last = None if event.name == "interrupted" else event.id
                    turn_id = event.data.get("turn_id", turn_id)
                    yield event
                    if event.is_last:
                        return
            reason = "it ended"
        except httpx.TransportError as error:
            reason = repr(error)
        finally:
            await response.aclose()
        breaks += 1
        seconds = _PATIENCE.pause(breaks, 0.0, math.inf, _draw()) or 0.0
        _log.info("the stream of a turn broke (%s); resuming behind %s in %.3f s", reason, last, seconds)
        await asyncio.sleep(seconds)


async def _events(response: httpx.Response) -> AsyncGenerator[ChatEvent, None]:
    cutter, block = Events(), b""
    async with aclosing(cast("AsyncGenerator[bytes, None]", response.aiter_raw())) as chunks:
        async for chunk in chunks:
            for part in cutter.feed(chunk):
                # A large event comes in parts, the last of which has its end.
                block += part
                if block.endswith(_ENDED):
                    event = _event(block)
                    block = b""
                    if event is not None:
                        yield event


def _event(block: bytes) -> ChatEvent | None:
    """The event that a block is; None for what only keeps the line open."""
    fields: dict[bytes, bytes] = {}
    for line in block.split(b"\n"):
        name, _, value = line.partition(b": ")
        fields[name] = value
    if b"event" not in fields:
        return None
    try:
        data = json.loads(fields[b"data"])
        return ChatEvent(fields[b"id"].decode(), fields[b"event"].decode(), dict(data))
    except (KeyError, TypeError, ValueError) as error:
        raise UnexpectedAnswer(f"this is no event of a turn: {block[:200]!r}") from error


def _messages(said: Any) -> tuple[ChatMessage, ...]:
    return tuple(ChatMessage(**{name: one[name] for name in ChatMessage.__slots__}) for one in said)


def _answer(said: Any) -> ChatAnswer:
    return ChatAnswer(
        said["status"],
        said["turn_id"],
        said.get("response"),
        _messages(said.get("messages") or ()),
        said.get("duplicate_of"),
        said.get("superseded_by"),
        said.get("error"),
    )


def _turn(said: Any) -> TurnSeen:
    tools = tuple(ToolSeen(**{name: one[name] for name in ToolSeen.__slots__}) for one in said["tools"])
    values = {name: said[name] for name in TurnSeen.__slots__}
    return TurnSeen(**{**values, "messages": _messages(said["messages"]), "tools": tools})


def _of_turn(turn: TurnSeen) -> ChatAnswer:
    if turn.status in _UNFINISHED:
        return ChatAnswer("processing", turn.turn_id)
    return ChatAnswer(
        turn.status,
        turn.turn_id,
        turn.response,
        turn.messages,
        superseded_by=turn.superseded_by,
        error=turn.error,
    )
