"""`hub.chat`: send messages to the hub's brain, read the turns that answer them, and follow their streams.

A broken stream is resumed after the last event that was yielded. If the response starts again from the beginning, the
stream has an event `interrupted`: discard the text before it.
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
from onceward.core.log_event import log_event
from onceward.errors import UnexpectedAnswer
from onceward.http.client.policy import RetryPolicy
from onceward.http.response.sse import EventSplitter, is_event_stream
from onceward.hub.client import responses
from onceward.hub.client.connection import SECONDS_MAX, HubConnection, as_json, path_of
from onceward.ledger.terms import check_seconds

# Three heartbeats of the hub, one every 15 seconds: one may be lost, and the next one may be late.
SILENCE_SECONDS = 45.0
# Time for which one request waits for its turn to end. After that, the client follows the stream of the turn.
_ASK_SECONDS = 10
# Unlimited attempts: the connection decides when to give up on a hub that does not respond.
_BACKOFF = RetryPolicy(tries=sys.maxsize)
_EVENT_END = b"\n\n"
_UNFINISHED = frozenset({"accumulating", "processing", "committing"})

# Opens the stream after the event with this id, or from the beginning. The turn's id is given once it is known.
_Connect: TypeAlias = Callable[[str | None, str | None], Awaitable[httpx.Response]]

_log = logging.getLogger("onceward.hub.client")
_draw = random.SystemRandom().random


class Saying(TypedDict, total=False):
    """Optional fields of a message. The hub fills in those that are not given.

    Attributes:
        tenant_id: The tenant of the conversation.
        customer_id: The customer who writes.
        agent_id: The agent that answers.
        channel: The channel of the conversation.
        message_id: The id of the message. A second message with the same id is a duplicate.
        session_key: The conversation to use instead of the one that the fields above determine.
        metadata: Further data, a JSON object.
    """

    tenant_id: str
    customer_id: str
    agent_id: str
    channel: str
    message_id: str
    session_key: str
    metadata: dict[str, Json]


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """A message of a turn."""

    message_id: str
    content: str
    metadata: dict[str, Json]
    created_at: str


@dataclass(frozen=True, slots=True)
class ChatAnswer:
    """State of the turn that answers a message.

    Attributes:
        status: `processing`, `complete`, `failed` or `superseded`.
        turn_id: The id of the turn.
        response: The response of a complete turn.
        messages: The messages that the turn answers.
        duplicate_of: The id of the turn that already had this message.
        superseded_by: The id of the turn that replaced this one.
        error: The reason why the turn failed.
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
    """A tool call of a turn that may have had an effect."""

    tool: str
    key: str
    effect: str
    status: str
    arguments: dict[str, Json]
    receipt: Json
    created_at: str


@dataclass(frozen=True, slots=True)
class TurnSeen:
    """Snapshot of a turn. Times are text in UTC."""

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
    """An event of a turn's stream. `name` is `delta`, `tool`, `done`, `superseded` or `interrupted`."""

    id: str
    name: str
    data: dict[str, Any]

    @property
    def text(self) -> str:
        """The text of a `delta`, a part of the response. Empty for other events."""
        return str(self.data.get("text", "")) if self.name == "delta" else ""

    @property
    def is_last(self) -> bool:
        """True if the turn is over after this event. A failed turn ends with an `interrupted` that has an `error`."""
        return self.name in {"done", "superseded"} or (self.name == "interrupted" and "error" in self.data)


class Chat:
    """Messages and turns of a hub. `Hub` creates it as `hub.chat`."""

    def __init__(self, connection: HubConnection) -> None:
        self._connection = connection

    async def say(
        self,
        message: str,
        *,
        wait_seconds: float = 0.0,
        idempotency_key: str | None = None,
        **about: Unpack[Saying],
    ) -> ChatAnswer:
        """Send a message, once, and wait for the response to it.

        Each call sends a new message, even with the same text, unless the `idempotency_key` or the `message_id` is the
        same.

        Args:
            message: The text of the message.
            wait_seconds: The time to wait for the response.
            idempotency_key: A key of your own, to repeat the call later. By default, the client generates one.
            about: Further fields of the message; see `Saying`.

        Returns:
            The state of the turn: `processing` if it is not over after `wait_seconds`.

        Raises:
            Busy: The turn of an earlier message with the same key is not over, or too many turns are queued.
            KeyReused: The key was already used with a different message.
            TooLarge: The message is too large.
            InvalidOption: `wait_seconds` is not valid.
        """
        deadline = time.monotonic() + _wait(wait_seconds)
        request = self._message("/chat", message, idempotency_key, about)
        if wait_seconds >= 1:
            request.headers["Prefer"] = f"wait={min(int(wait_seconds), _ASK_SECONDS)}"
            _set_read_timeout(self._connection, request, self._connection.try_seconds + _ASK_SECONDS)
        answer = responses.read(await self._connection.send(request), _answer)
        left = deadline - time.monotonic()
        return answer if answer.status != "processing" or left <= 0 else await self.finished(answer.turn_id, left)

    async def turn(self, turn_id: str) -> TurnSeen:
        """Return the current state of a turn.

        Args:
            turn_id: The id of the turn.

        Returns:
            A snapshot of the turn.

        Raises:
            NotFound: The turn does not exist.
        """
        return await self._connection.read(path_of("/turns", "turn", turn_id), {}, _turn)

    async def finished(self, turn_id: str, wait_seconds: float = 60.0) -> ChatAnswer:
        """Wait until a turn is over, or until the turn that superseded it is.

        Args:
            turn_id: The id of the turn.
            wait_seconds: The time to wait.

        Returns:
            The state of the last turn: `processing` if it is not over after `wait_seconds`.

        Raises:
            NotFound: The turn does not exist.
            InvalidOption: `wait_seconds` is not valid.
        """
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
        """Send a message, once, and iterate over the events of its turn until the turn is over.

        A broken stream is resumed. With the key of an earlier message, this iterates over the stream of that message
        from the beginning. The iteration can raise the exceptions of `say`.

        Args:
            message: The text of the message.
            idempotency_key: A key of your own, to repeat the call later. By default, the client generates one.
            about: Further fields of the message; see `Saying`.

        Returns:
            An asynchronous iterator over the events.
        """
        key = idempotency_key or uuid4().hex
        if idempotency_key is None:
            # A key expires some time after its turn. A message id does not, so a late reconnection finds the turn.
            about = {"message_id": key, **about}

        async def connect(last: str | None, turn_id: str | None) -> httpx.Response:
            if turn_id is not None:
                # Do not send the message again: if its turn has failed, that would start another turn.
                return await self._open(self._connection.get(_events_path(turn_id), {}), last)
            request = self._message("/chat/stream", message, key, about)
            # Without `replay`, the hub refuses a stream that is opened after the turn has completed.
            request.url = request.url.copy_merge_params({"replay": "1"})
            return await self._open(request, last)

        return followed(connect, None)

    def follow(self, turn_id: str, *, after: str | None = None) -> AsyncGenerator[ChatEvent, None]:
        """Iterate over the events of a turn until it is over.

        A broken stream is resumed. The iteration raises `NotFound` if the turn does not exist.

        Args:
            turn_id: The id of the turn.
            after: The id of the last event that you have. Without it, the stream starts at its beginning.

        Returns:
            An asynchronous iterator over the events.
        """
        path = _events_path(turn_id)

        async def connect(last: str | None, _turn_id: str | None) -> httpx.Response:
            return await self._open(self._connection.get(path, {}), last)

        return followed(connect, after)

    def _message(self, path: str, message: str, key: str | None, about: Saying) -> httpx.Request:
        request = self._connection.request("POST", path, as_json({"message": message, **about}), key)
        request.headers["Content-Type"] = "application/json"
        return request

    async def _open(self, request: httpx.Request, last: str | None) -> httpx.Response:
        request.headers.update({"Accept": "text/event-stream", "Accept-Encoding": "identity"})
        if last is not None:
            request.headers["Last-Event-ID"] = last
        _set_read_timeout(self._connection, request, SILENCE_SECONDS)
        return await self._connection.open(request, _is_stream)


def _events_path(turn_id: str) -> str:
    return path_of("/turns", "turn", turn_id, "/events")


def _wait(seconds: float) -> float:
    return check_seconds("wait_seconds", seconds, SECONDS_MAX)


def _set_read_timeout(connection: HubConnection, request: httpx.Request, seconds: float) -> None:
    """Set the time for which the hub may be silent while it responds to this request."""
    timeout = httpx.Timeout(connection.try_seconds, read=seconds)
    request.extensions = {**request.extensions, "timeout": timeout.as_dict()}


def _is_stream(response: httpx.Response) -> bool:
    return response.is_success and is_event_stream(response.headers.get("Content-Type", "").encode())


async def followed(connect: _Connect, last: str | None) -> AsyncGenerator[ChatEvent, None]:
    """Yield the events after the one with the id `last`, up to the last event of the turn, reconnecting as needed."""
    breaks, turn_id = 0, None
    while True:
        response = await connect(last, turn_id)
        try:
            async with aclosing(_events(response)) as events:
                async for event in events:
                    breaks = 0
                    # After an interruption, the stream starts again from the beginning.
                    last = None if event.name == "interrupted" else event.id
                    turn_id = event.data.get("turn_id", turn_id)
                    yield event
                    if event.is_last:
                        return
            reason = "the connection was closed"
        except httpx.TransportError as error:
            reason = repr(error)
        finally:
            await response.aclose()
        breaks += 1
        seconds = _BACKOFF.pause(breaks, 0.0, math.inf, _draw()) or 0.0
        log_event(_log.info, "turn_stream_broken", reason=reason, after=last, retry_in_seconds=round(seconds, 3))
        await asyncio.sleep(seconds)


async def _events(response: httpx.Response) -> AsyncGenerator[ChatEvent, None]:
    splitter, block = EventSplitter(), b""
    async with aclosing(cast("AsyncGenerator[bytes, None]", response.aiter_raw())) as chunks:
        async for chunk in chunks:
            for part in splitter.feed(chunk):
                # A large event arrives in parts; the last part has the end of the event.
                block += part
                if block.endswith(_EVENT_END):
                    event = _event(block)
                    block = b""
                    if event is not None:
                        yield event


def _event(block: bytes) -> ChatEvent | None:
    """Parse a block into an event. None for a heartbeat."""
    fields: dict[bytes, bytes] = {}
    for line in block.split(b"\n"):
        name, _, value = line.partition(b": ")
        fields[name] = value
    if b"event" not in fields:
        return None
    try:
        data = json.loads(fields[b"data"])
        return ChatEvent(fields[b"id"].decode(), fields[b"event"].decode(), dict(data))
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise UnexpectedAnswer(f"the hub sent a malformed event of a turn: {block[:200]!r}") from error


def _messages(body: Any) -> tuple[ChatMessage, ...]:
    return tuple(ChatMessage(**{name: one[name] for name in ChatMessage.__slots__}) for one in body)


def _answer(body: Any) -> ChatAnswer:
    return ChatAnswer(
        body["status"],
        body["turn_id"],
        body.get("response"),
        _messages(body.get("messages") or ()),
        body.get("duplicate_of"),
        body.get("superseded_by"),
        body.get("error"),
    )


def _turn(body: Any) -> TurnSeen:
    tools = tuple(ToolSeen(**{name: one[name] for name in ToolSeen.__slots__}) for one in body["tools"])
    values = {name: body[name] for name in TurnSeen.__slots__}
    return TurnSeen(**{**values, "messages": _messages(body["messages"]), "tools": tools})


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
