"""One client that follows the log: every wanted event behind its cursor, once, in the order of the ids.

The cursor moves only when a write has been taken, so it always says what the client can count on, and where it resumes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable

from onceward.errors import StoreUnavailable
from onceward.events.feed import Feed
from onceward.events.hello import GONE, Ending, Start
from onceward.events.log import Filter
from onceward.events.replay import FIRST_EVENTS
from onceward.events.ring import Span
from onceward.events.wire import Wire

# How often a filtered client hears how far it has come past events that it does not want.
_PROGRESS_SECONDS = 1.0
# Pauses when the log cannot be read: they double from the first to the last.
_PAUSE_SECONDS_MIN, _PAUSE_SECONDS_MAX = 0.1, 5.0

Write = Callable[[bytes], Awaitable[None]]
Farewell = Callable[[Ending, int], Awaitable[None]]


class Session:
    """`write` passes bytes on and waits while the client does not read; an `OSError` means that it is gone.
    `unsent` says how many bytes wait for the client, where the server tells. `visitor` is whom `Feed.dismiss` names.
    """

    def __init__(
        self,
        feed: Feed,
        wire: Wire,
        wanted: Filter,
        start: Start,
        write: Write,
        unsent: Callable[[], int] | None = None,
        visitor: Hashable = None,
    ) -> None:
        # Behind a gap only when the client has heard of it.
        self.cursor = start.after if start.missed is None else start.missed
        self.due = 0.0
        self.visitor = visitor
        self._feed = feed
        self._wire = wire
        self._wanted = wanted
        self._start = start
        self._write = write
        self._unsent = unsent
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[object] | None = None
        self._ending: Ending | None = None
        self._waiter: asyncio.Future[None] | None = None
        # What the client knows of the cursor, and when it was last told something.
        self._told = self.cursor
        self._told_at = 0.0
        self._progress_at = 0.0
        self._caught_up = False
        self._page_limit = FIRST_EVENTS
        self._asked = False
        # While a write waits for the client: since when, and how much was unsent then.
        self._writing_since: float | None = None
        self._writing_unsent = 0
        self._is_cut = False

    async def run(self, farewell: Farewell) -> None:
        """Follow until something ends it; `farewell` says so to the client, and belongs to the session."""
        self._task = asyncio.current_task()
        self._feed.enter(self)
        try:
            ending = await self._until_it_ends()
            if ending is not GONE:
                await farewell(ending, self.cursor)
        finally:
            self._feed.leave(self)

    async def _until_it_ends(self) -> Ending:
        try:
            await self._greet()
            await self._follow()
        except OSError:
            return GONE
        except asyncio.CancelledError:
            if not self._is_cut or self._task is None or self._task.uncancel() > 0:
                raise
        self._writing_since = None
        return self._ending or GONE

    # For the feed, and for whoever listens to the client.

    def wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def end(self, ending: Ending) -> None:
        if self._ending is None:
            self._ending = ending
        self.wake()

    def cut(self, ending: Ending) -> None:
        if self._is_cut or self._task is None:
            return
        self._is_cut = True
        self._ending = ending
        self._task.cancel()

    def dismiss(self, ending: Ending) -> None:
        if self._ending is None:
            self.end(ending)
        elif self._writing_since is not None:
            self.cut(ending)

    def is_stalled(self, now: float, stall_seconds: float) -> bool:
        if self._writing_since is None or now - self._writing_since < stall_seconds:
            return False
        if self._unsent is not None and (unsent := self._unsent()) < self._writing_unsent:
            # Slow, but it reads.
            self._writing_since, self._writing_unsent = now, unsent
            return False
        return True

    def ask(self) -> None:
        """The client wants a sign of life."""
        self._asked = True
        self.wake()

    # What is said, in this order.

    async def _greet(self) -> None:
        extent = self._start.extent
        await self._say(
            "hello_ok",
            replay_until=extent.last_event_id,
            oldest_event_id=extent.oldest_event_id,
            log_epoch=extent.log_epoch,
        )
        if self._start.missed is not None:
            gap = {"after_event_id": self.cursor, "oldest_event_id": extent.oldest_event_id}
            await self._put(self._wire.mark("gap", self._start.after, **gap))
            self.cursor = self._told = self._start.after

    async def _follow(self) -> None:
        while not self._has_ended():
            if not self._caught_up and self.cursor >= self._start.extent.last_event_id:
                self._caught_up = True
                await self._say("caught_up", after_event_id=self.cursor)
            span = self._feed.after(self.cursor, self._wire, self._wanted)
            if span is None:
                await self._replay()
            elif span.end > self.cursor:
                await self._send(span)
            else:
                await self._idle()

    async def _send(self, span: Span) -> None:
        if span.data:
            await self._put(span.data)
            self._told = span.sent
        self.cursor = span.end
        if not span.whole:
            # A client that reads fast never makes a write wait; the others have their turn too.
            await asyncio.sleep(0)

    async def _replay(self) -> None:
        """One page from the database."""
        pause = _PAUSE_SECONDS_MIN
        while not self._has_ended():
            seen = self._feed.changes
            try:
                page = await self._feed.replay(self.cursor, self._page_limit, self._wanted, self._wire)
                break
            except StoreUnavailable:
                now = self._loop.time()
                if now >= self._told_at + self._feed.heartbeat_seconds:
                    await self._say("ping", after_event_id=self.cursor)
                # It asks again when the pause is over, and says that it is there when that is due.
                await self._rest(min(now + pause, self._told_at + self._feed.heartbeat_seconds))
                pause = min(pause * 2, _PAUSE_SECONDS_MAX)
        else:
            return
        self._page_limit = page.next_limit
        if page.after > self.cursor:
            await self._say("gap", after_event_id=self.cursor, oldest_event_id=page.oldest_event_id)
            self.cursor = self._told = page.after
        if page.end <= self.cursor and self._feed.changes == seen:
            # The log had nothing, and since then nothing has come: the ring has not begun yet.
            await self._idle()
        while page.writes:
            data, last = page.writes.popleft()
            await self._put(data)
            self.cursor = self._told = last
            if self._has_ended():
                return
        self.cursor = max(self.cursor, page.end)
        if self._behind() and self._loop.time() >= self._progress_at:
            await self._tell_progress()

    async def _idle(self) -> None:
        """Nothing to send: say what is due, or wait for an event or the next thing to say."""
        now = self._loop.time()
        due = self._told_at + self._feed.heartbeat_seconds
        if self._behind():
            due = min(due, self._progress_at)
        if self._asked:
            self._asked = False
            await self._say("ping", after_event_id=self.cursor)
        elif self._behind() and self._progress_at <= now:
            await self._tell_progress()
        elif due <= now:
            await self._say("ping", after_event_id=self.cursor)
        else:
            await self._rest(due)

    def _has_ended(self) -> bool:
        return self._ending is not None

    def _behind(self) -> bool:
        """Whether the client does not know how far it has come."""
        return self._told < self.cursor and not self._wanted.is_all

    async def _tell_progress(self) -> None:
        await self._say("progress", after_event_id=self.cursor)
        self._progress_at = self._loop.time() + _PROGRESS_SECONDS

    async def _rest(self, due: float) -> None:
        """Until there is something new, or that time; not at all when it has ended."""
        if self._has_ended():
            return
        self.due = due
        self._waiter = self._loop.create_future()
        self._feed.await_change(self)
        await self._waiter

    async def _say(self, kind: str, **fields: object) -> None:
        await self._put(self._wire.mark(kind, self.cursor, **fields))
        self._told = self.cursor

    async def _put(self, data: bytes) -> None:
        self._writing_unsent = 0 if self._unsent is None else self._unsent()
        self._writing_since = self._told_at = self._loop.time()
        await self._write(data)
        self._writing_since = None
