"""Iterator that follows the events of a hub without end, over connections that may break.

The cursor is the id of the last event that was yielded, or a later position up to which the hub has reported that no
event matches. A new connection requests the events after the cursor. So no event is missed and none comes twice,
whatever was in transit when the old connection broke.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import random
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable
from types import AsyncGeneratorType
from typing import Any, Literal, Self, TypeAlias, cast

import httpx

from onceward.core.log_event import log_event
from onceward.errors import EventsLost, HubUnavailable, InvalidInput, InvalidOption, OtherLog, UnexpectedAnswer
from onceward.http.client.policy import RetryPolicy
from onceward.http.response.sse import EventSplitter
from onceward.hub.client import responses
from onceward.hub.client.types import Event, Gap

OnGap: TypeAlias = Literal["raise", "continue"]
# Opens the stream after a cursor (None: from now on), or raises.
Connect: TypeAlias = Callable[[int | None], Awaitable[httpx.Response]]

# The hub's ids are at most this large.
CURSOR_MAX = 2**63 - 1

# Unlimited attempts. Pauses grow while connections break as soon as they are opened.
_BACKOFF = RetryPolicy(tries=sys.maxsize)

_log = logging.getLogger("onceward.hub.client")
_draw = random.SystemRandom().random


class Following:
    """Endless iterator over events: `async for event in hub.follow():`. `Hub.follow` creates it.

    It yields each event once and in order. Cancelling `anext` loses nothing: the connection is closed, and the next
    call resumes. `aclose`, or leaving `async with hub.follow() as following:`, ends the iteration.

    Attributes:
        cursor: The position in the log. None until the hub has reported its current position. Store it together with
            `log_epoch`, and pass both to a later `follow` to continue from here.
        log_epoch: The identity of the hub's log.

    Raises:
        EventsLost: Events after the cursor have been deleted, and `on_gap` is `"raise"`.
        OtherLog: The hub's log is not the one that the cursor or `log_epoch` belongs to.
        HubUnavailable: The first connection failed.
    """

    def __init__(
        self,
        connect: Connect,
        after: int | None = None,
        log_epoch: str | None = None,
        on_gap: OnGap = "raise",
        *,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        draw: Callable[[], float] = _draw,
    ) -> None:
        self.cursor = check_cursor(after)
        self.log_epoch = log_epoch
        self._connect = connect
        self._sleep = sleep
        self._draw = draw
        self._on_gap = check_on_gap(on_gap)
        self._response: httpx.Response | None = None
        self._chunks: AsyncGeneratorType[bytes, None] | None = None
        self._cutter = EventSplitter()
        self._blocks: deque[bytes] = deque()
        self._is_over = False
        # Connections in a row that broke without an event, and the time at which the current one was opened.
        self._breaks = 0
        self._since: float | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        try:
            while not self._is_over:
                while self._blocks:
                    event = self._handle_block(self._blocks.popleft())
                    if event is not None:
                        return event
                await self._listen()
        except BaseException:
            # Blocks that were received but not yielded are requested again.
            await self._disconnect()
            raise
        raise StopAsyncIteration

    async def __aenter__(self) -> Self:
        """Connect now unless a cursor is set, so that events caused inside the block are not missed."""
        try:
            while self.cursor is None and not self._is_over:
                await self._listen()
                while self._blocks and self.cursor is None:
                    self._handle_block(self._blocks.popleft())
        except BaseException:
            await self._disconnect()
            raise
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """End the iteration and close its connection."""
        self._is_over = True
        await self._disconnect()

    # The connection.

    async def _listen(self) -> None:
        """Receive the next chunk, over a new connection if necessary."""
        if self._chunks is None:
            await self._begin()
            return
        try:
            chunk = await anext(self._chunks, None)
            reason = "the connection was closed"
        except httpx.TransportError as error:
            chunk, reason = None, repr(error)
        if chunk is not None:
            self._blocks.extend(self._cutter.feed(chunk))
        elif not self._is_over:
            await self._disconnect()
            await self._pause(reason)

    async def _begin(self) -> None:
        try:
            self._response = await self._connect(self.cursor)
        except HubUnavailable as error:
            if self._since is None:
                # No connection has ever succeeded, so the URL may be wrong. Do not retry forever.
                raise
            await self._pause(repr(error))
            return
        except InvalidInput as error:
            if any(name == "after" for name, _ in error.fields):
                raise OtherLog(
                    f"the cursor {self.cursor} is beyond the end of the hub's log, so it belongs to another log"
                ) from error
            raise
        self._chunks = cast("AsyncGeneratorType[bytes, None]", self._response.aiter_raw())
        self._since = time.monotonic()

    async def _disconnect(self) -> None:
        response, chunks = self._response, self._chunks
        self._response = self._chunks = None
        self._cutter = EventSplitter()
        self._blocks.clear()
        if response is not None:
            await response.aclose()
        # Another task may still be reading the chunks. It then gets an error, because the connection is closed.
        if chunks is not None and not chunks.ag_running:
            await chunks.aclose()

    async def _pause(self, reason: str) -> None:
        if self._since is not None and time.monotonic() - self._since > _BACKOFF.longest_pause_seconds:
            self._breaks = 0
        self._breaks += 1
        seconds = _BACKOFF.pause(self._breaks, 0.0, math.inf, self._draw()) or 0.0
        log_event(
            _log.info,
            "event_stream_broken",
            reason=reason,
            after_event_id=self.cursor,
            retry_in_seconds=round(seconds, 3),
        )
        await self._sleep(seconds)

    # Blocks of the stream.

    def _handle_block(self, block: bytes) -> Event | None:
        """Process one block of the stream. Return the event in it, if it is new."""
        try:
            kind, data = _read(block)
            match kind:
                case "comment":
                    return None
                case "message":
                    return self._event(responses.event(data))
                case "hello_ok":
                    self._handshake(data["log_epoch"], data["replay_until"])
                case "progress" | "caught_up":
                    self.cursor = max(self.cursor or 0, data["after_event_id"])
                case "gap":
                    self._gap(Gap(data["after_event_id"], data["oldest_event_id"]))
                case "error":
                    # The stream ends here, and the next one resumes.
                    log_event(_log.info, "event_stream_ended", code=data.get("code"))
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise UnexpectedAnswer(f"the hub sent a malformed event: {block[:200]!r}") from error
        return None

    def _event(self, event: Event) -> Event | None:
        self._breaks = 0
        if self.cursor is None:
            raise ValueError("an event before the handshake")
        if event.event_id <= self.cursor:
            return None
        self.cursor = event.event_id
        return event

    def _handshake(self, log_epoch: str, last_event_id: int) -> None:
        if self.log_epoch is not None and log_epoch != self.log_epoch:
            raise OtherLog(
                f"the cursor {self.cursor} belongs to the log {self.log_epoch!r}, but the hub's log is {log_epoch!r}"
            )
        self.log_epoch = log_epoch
        if self.cursor is None:
            self.cursor = last_event_id

    def _gap(self, gap: Gap) -> None:
        if self._on_gap == "raise":
            raise lost(gap)
        log_event(
            _log.warning,
            "events_lost",
            first_event_id=gap.after_event_id + 1,
            last_event_id=gap.oldest_event_id - 1,
            reason="the hub has deleted them: their retention is over",
        )
        self.cursor = gap.oldest_event_id - 1


def lost(gap: Gap) -> EventsLost:
    return EventsLost(
        f"the hub has deleted the events {gap.after_event_id + 1} to {gap.oldest_event_id - 1}: their retention is over",
        gap.after_event_id,
        gap.oldest_event_id,
    )


def check_on_gap(on_gap: OnGap) -> OnGap:
    if on_gap not in {"raise", "continue"}:
        raise InvalidOption(f"on_gap= must be 'raise' or 'continue', not {on_gap!r}")
    return on_gap


def check_cursor(after: int | None) -> int | None:
    if after is not None and (type(after) is not int or not 0 <= after <= CURSOR_MAX):
        raise InvalidInput(
            f"a cursor must be the id of an event, not {after!r}", (("after", "must be the id of an event"),)
        )
    return after


def _read(block: bytes) -> tuple[str, Any]:
    """Parse a block into its kind and its object. A block without data is a comment."""
    kind, data = "message", []
    for line in block.splitlines():
        name, _, value = line.partition(b":")
        if name == b"data":
            data.append(value.removeprefix(b" "))
        elif name == b"event":
            kind = value.removeprefix(b" ").decode()
    return (kind, json.loads(b"\n".join(data))) if data else ("comment", None)
