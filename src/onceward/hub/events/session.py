"""Feed session: send one client every wanted event after its cursor, once, in the order of the ids.

The cursor moves only after the server has accepted a write, so it is always a safe position to resume from.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable

from onceward.errors import StoreUnavailable
from onceward.hub.events.catch_up import FIRST_EVENTS
from onceward.hub.events.feed import Feed
from onceward.hub.events.framing import Framing
from onceward.hub.events.handshake import GONE, CloseReason, Start
from onceward.hub.events.log import Filter
from onceward.hub.events.ring import Span

# The shortest time between two `progress` marks, which tell a filtered client how far the log was searched.
_PROGRESS_SECONDS = 1.0
# Pauses when the log cannot be read. They double, from the first value to the second.
_PAUSE_SECONDS_MIN, _PAUSE_SECONDS_MAX = 0.1, 5.0

Write = Callable[[bytes], Awaitable[None]]
SendClose = Callable[[CloseReason, int], Awaitable[None]]


class FeedSession:
    """One client that follows the log.

    Args:
        feed: The feed.
        framing: The encoding for this client.
        wanted: The filter.
        start: The starting point.
        write: Sends bytes, and waits while the client does not read. An `OSError` means that the client is gone.
        unsent: Returns the number of bytes that the client has not taken yet, if the server knows it.
        owner: The owner for `Feed.dismiss`.
    """

    def __init__(
        self,
        feed: Feed,
        framing: Framing,
        wanted: Filter,
        start: Start,
        write: Write,
        unsent: Callable[[], int] | None = None,
        owner: Hashable = None,
    ) -> None:
        # The cursor moves past a gap only after the client was notified of it.
        self.cursor = start.after if start.missed is None else start.missed
        self.due = 0.0
        self.owner = owner
        self._feed = feed
        self._framing = framing
        self._wanted = wanted
        self._start = start
        self._write = write
        self._unsent = unsent
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[object] | None = None
        self._close_reason: CloseReason | None = None
        self._waiter: asyncio.Future[None] | None = None
        # The cursor as the client knows it, and the time of the last write.
        self._client_cursor = self.cursor
        self._written_at = 0.0
        self._progress_at = 0.0
        self._caught_up = False
        self._page_limit = FIRST_EVENTS
        self._ping_requested = False
        # While a write waits for the client: the time since when, and the bytes unsent at that time.
        self._writing_since: float | None = None
        self._writing_unsent = 0
        self._is_cut = False

    async def run(self, send_close: SendClose) -> None:
        """Follow the log until the session ends. `send_close` then sends the reason to the client."""
        self._task = asyncio.current_task()
        self._feed.enter(self)
        try:
            reason = await self._until_it_ends()
            if reason is not GONE:
                await send_close(reason, self.cursor)
        finally:
            self._feed.leave(self)

    async def _until_it_ends(self) -> CloseReason:
        try:
            await self._send_hello_ok()
            await self._follow()
        except OSError:
            return GONE
        except asyncio.CancelledError:
            if not self._is_cut or self._task is None or self._task.uncancel() > 0:
                raise
        self._writing_since = None
        return self._close_reason or GONE

    # For the feed, and for the task that reads from the client.

    def wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def end(self, reason: CloseReason) -> None:
        if self._close_reason is None:
            self._close_reason = reason
        self.wake()

    def cut(self, reason: CloseReason) -> None:
        if self._is_cut or self._task is None:
            return
        self._is_cut = True
        self._close_reason = reason
        self._task.cancel()

    def dismiss(self, reason: CloseReason) -> None:
        if self._close_reason is None:
            self.end(reason)
        elif self._writing_since is not None:
            self.cut(reason)

    def is_stalled(self, now: float, stall_seconds: float) -> bool:
        if self._writing_since is None or now - self._writing_since < stall_seconds:
            return False
        if self._unsent is not None and (unsent := self._unsent()) < self._writing_unsent:
            # The client is slow, but it reads.
            self._writing_since, self._writing_unsent = now, unsent
            return False
        return True

    def request_ping(self) -> None:
        """Send a ping soon, because the client asked for one."""
        self._ping_requested = True
        self.wake()

    # Sending, in this order.

    async def _send_hello_ok(self) -> None:
        extent = self._start.extent
        await self._send_mark(
            "hello_ok",
            replay_until=extent.last_event_id,
            oldest_event_id=extent.oldest_event_id,
            log_epoch=extent.log_epoch,
        )
        if self._start.missed is not None:
            gap = {"after_event_id": self.cursor, "oldest_event_id": extent.oldest_event_id}
            await self._put(self._framing.mark("gap", self._start.after, **gap))
            self.cursor = self._client_cursor = self._start.after

    async def _follow(self) -> None:
        while not self._has_ended():
            if not self._caught_up and self.cursor >= self._start.extent.last_event_id:
                self._caught_up = True
                await self._send_mark("caught_up", after_event_id=self.cursor)
            span = self._feed.after(self.cursor, self._framing, self._wanted)
            if span is None:
                await self._catch_up()
            elif span.end > self.cursor:
                await self._send(span)
            else:
                await self._idle()

    async def _send(self, span: Span) -> None:
        if span.data:
            await self._put(span.data)
            self._client_cursor = span.sent
        self.cursor = span.end
        if not span.whole:
            # The writes of a fast client never wait, so yield to the other sessions.
            await asyncio.sleep(0)

    async def _catch_up(self) -> None:
        """Send one page from the database."""
        pause = _PAUSE_SECONDS_MIN
        while not self._has_ended():
            seen = self._feed.changes
            try:
                page = await self._feed.catch_up(self.cursor, self._page_limit, self._wanted, self._framing)
                break
            except StoreUnavailable:
                now = self._loop.time()
                if now >= self._written_at + self._feed.heartbeat_seconds:
                    await self._send_mark("ping", after_event_id=self.cursor)
                # Wait until the pause is over or a heartbeat is due.
                await self._rest(min(now + pause, self._written_at + self._feed.heartbeat_seconds))
                pause = min(pause * 2, _PAUSE_SECONDS_MAX)
        else:
            return
        self._page_limit = page.next_limit
        if page.after > self.cursor:
            await self._send_mark("gap", after_event_id=self.cursor, oldest_event_id=page.oldest_event_id)
            self.cursor = self._client_cursor = page.after
        if page.end <= self.cursor and self._feed.changes == seen:
            # The log had nothing, and nothing has arrived since: the ring has not been filled yet.
            await self._idle()
        while page.writes:
            data, last = page.writes.popleft()
            await self._put(data)
            self.cursor = self._client_cursor = last
            if self._has_ended():
                return
        self.cursor = max(self.cursor, page.end)
        if self._behind() and self._loop.time() >= self._progress_at:
            await self._send_progress()

    async def _idle(self) -> None:
        """Send a due ping or progress mark, or wait for events or for the next mark."""
        now = self._loop.time()
        due = self._written_at + self._feed.heartbeat_seconds
        if self._behind():
            due = min(due, self._progress_at)
        if self._ping_requested:
            self._ping_requested = False
            await self._send_mark("ping", after_event_id=self.cursor)
        elif self._behind() and self._progress_at <= now:
            await self._send_progress()
        elif due <= now:
            await self._send_mark("ping", after_event_id=self.cursor)
        else:
            await self._rest(due)

    def _has_ended(self) -> bool:
        return self._close_reason is not None

    def _behind(self) -> bool:
        """Return whether a filtered client does not know yet how far the log was searched."""
        return self._client_cursor < self.cursor and not self._wanted.is_all

    async def _send_progress(self) -> None:
        await self._send_mark("progress", after_event_id=self.cursor)
        self._progress_at = self._loop.time() + _PROGRESS_SECONDS

    async def _rest(self, due: float) -> None:
        """Wait for events or until that time. Returns at once if the session has ended."""
        if self._has_ended():
            return
        self.due = due
        self._waiter = self._loop.create_future()
        self._feed.await_change(self)
        await self._waiter

    async def _send_mark(self, kind: str, **fields: object) -> None:
        await self._put(self._framing.mark(kind, self.cursor, **fields))
        self._client_cursor = self.cursor

    async def _put(self, data: bytes) -> None:
        self._writing_unsent = 0 if self._unsent is None else self._unsent()
        self._writing_since = self._written_at = self._loop.time()
        await self._write(data)
        self._writing_since = None
