"""Following the events of a hub for ever, over connections that break.

The cursor is the id of the last event that was given out, or a place behind it up to which the hub has said that nothing
is wanted. A new connection asks for what is behind the cursor, so nothing is missed and nothing comes twice, whatever
was under way when the old one ended.
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

from onceward.errors import EventsLost, HubUnavailable, InvalidInput, InvalidOption, OtherLog, UnexpectedAnswer
from onceward.http.events import Events as Cutter
from onceward.http.retry import Patience
from onceward.hub.client import answers
from onceward.hub.client.values import Event, Gap

OnGap: TypeAlias = Literal["raise", "continue"]
# Opens the stream behind a cursor (None: from now on), or raises why it does not open.
Connect: TypeAlias = Callable[[int | None], Awaitable[httpx.Response]]

# The hub takes no longer id, and has none.
CURSOR_MAX = 2**63 - 1

# Pauses grow while connections break as soon as they are made. There is no last try.
_PATIENCE = Patience(tries=sys.maxsize)

_log = logging.getLogger("onceward.hub.client")
_draw = random.SystemRandom().random


class Following:
    """`async for event in hub.follow():` gives each event once and in order, for ever.

    `cursor` and `log_epoch` say where it stands: kept together, they let a later `follow` go on from here. The cursor is
    None until the hub has said what "now" is. An `anext` that is cancelled loses nothing: the connection is closed, and
    the next one resumes. `aclose`, or leaving `async with hub.follow() as following:`, ends it.
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
        self._cutter = Cutter()
        self._blocks: deque[bytes] = deque()
        self._is_over = False
        # How often in a row a connection ended without having been of use, and since when the present one is there.
        self._breaks = 0
        self._since: float | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        try:
            while not self._is_over:
                while self._blocks:
                    event = self._heard(self._blocks.popleft())
                    if event is not None:
                        return event
                await self._listen()
        except BaseException:
            # What was received and not given out comes again.
            await self._disconnect()
            raise
        raise StopAsyncIteration

    async def __aenter__(self) -> Self:
        """Without a cursor it connects here, so that whatever happens inside of the block comes after "now"."""
        try:
            while self.cursor is None and not self._is_over:
                await self._listen()
                while self._blocks and self.cursor is None:
                    self._heard(self._blocks.popleft())
        except BaseException:
            await self._disconnect()
            raise
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """End it, and close its connection."""
        self._is_over = True
        await self._disconnect()

    # The connection.

    async def _listen(self) -> None:
        """Receive something more, over a new connection if need be."""
        if self._chunks is None:
            await self._begin()
            return
        try:
            chunk = await anext(self._chunks, None)
            reason = "it ended"
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
                # There has never been a hub at this address: for ever would be too long.
                raise
            await self._pause(repr(error))
            return
        except InvalidInput as error:
            if any(name == "after" for name, _ in error.fields):
                raise OtherLog(f"the hub's log ends before the event {self.cursor}: it is another one") from error
            raise
        self._chunks = cast("AsyncGeneratorType[bytes, None]", self._response.aiter_raw())
        self._since = time.monotonic()

    async def _disconnect(self) -> None:
        response, chunks = self._response, self._chunks
        self._response = self._chunks = None
        self._cutter = Cutter()
        self._blocks.clear()
        if response is not None:
            await response.aclose()
        # Another task may be in the middle of reading; it hears that the connection is closed.
        if chunks is not None and not chunks.ag_running:
            await chunks.aclose()

    async def _pause(self, reason: str) -> None:
        if self._since is not None and time.monotonic() - self._since > _PATIENCE.longest_pause_seconds:
            self._breaks = 0
        self._breaks += 1
        seconds = _PATIENCE.pause(self._breaks, 0.0, math.inf, self._draw()) or 0.0
        _log.info("the stream of events broke (%s); resuming after %s in %.3f s", reason, self.cursor, seconds)
        await self._sleep(seconds)

    # What the hub says.

    def _heard(self, block: bytes) -> Event | None:
        """Take in one block of the stream; gives the event that it is, if it is one that is new."""
        try:
            kind, said = _read(block)
            match kind:
                case "comment":
                    return None
                case "message":
                    return self._event(answers.event(said))
                case "hello_ok":
                    self._greeted(said["log_epoch"], said["replay_until"])
                case "progress" | "caught_up":
                    self.cursor = max(self.cursor or 0, said["after_event_id"])
                case "gap":
                    self._gap(Gap(said["after_event_id"], said["oldest_event_id"]))
                case "error":
                    # The stream ends here, and the next one resumes.
                    _log.info("the hub ends the stream of events: %s", said.get("code"))
        except (KeyError, TypeError, ValueError) as error:
            raise UnexpectedAnswer(f"this is no event of a hub: {block[:200]!r}") from error
        return None

    def _event(self, event: Event) -> Event | None:
        self._breaks = 0
        if self.cursor is None:
            raise ValueError("an event before the hello")
        if event.event_id <= self.cursor:
            return None
        self.cursor = event.event_id
        return event

    def _greeted(self, log_epoch: str, last_event_id: int) -> None:
        if self.log_epoch is not None and log_epoch != self.log_epoch:
            raise OtherLog(f"the hub's log is {log_epoch!r}, the cursor {self.cursor} is one of {self.log_epoch!r}")
        self.log_epoch = log_epoch
        if self.cursor is None:
            self.cursor = last_event_id

    def _gap(self, gap: Gap) -> None:
        if self._on_gap == "raise":
            raise lost(gap)
        _log.warning("events %d to %d are no longer kept", gap.after_event_id + 1, gap.oldest_event_id - 1)
        self.cursor = gap.oldest_event_id - 1


def lost(gap: Gap) -> EventsLost:
    return EventsLost(
        f"the events {gap.after_event_id + 1} to {gap.oldest_event_id - 1} are no longer kept",
        gap.after_event_id,
        gap.oldest_event_id,
    )


def check_on_gap(on_gap: OnGap) -> OnGap:
    if on_gap not in {"raise", "continue"}:
        raise InvalidOption(f"on_gap= is 'raise' or 'continue', not {on_gap!r}")
    return on_gap


def check_cursor(after: int | None) -> int | None:
    if after is not None and (type(after) is not int or not 0 <= after <= CURSOR_MAX):
        raise InvalidInput(f"a cursor is the id of an event, not {after!r}", (("after", "is not the id of an event"),))
    return after


def _read(block: bytes) -> tuple[str, Any]:
    """The kind and the object of one block; a block without data is a comment."""
    kind, data = "message", []
    for line in block.splitlines():
        name, _, value = line.partition(b":")
        if name == b"data":
            data.append(value.removeprefix(b" "))
        elif name == b"event":
            kind = value.removeprefix(b" ").decode()
    return (kind, json.loads(b"\n".join(data))) if data else ("comment", None)
