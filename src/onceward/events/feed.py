"""The feed of a process: one ring of new events, and the sessions that follow it.

There is no queue for a client. A session asks for what follows its cursor: the ring has it, or the database, or there
is nothing yet and it waits. So no client can hold up another, or fill the memory, and none misses an event: whatever
goes wrong, its cursor stands behind the last thing that was written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from onceward.db.engine import Database
from onceward.errors import StoreClosed
from onceward.events.hello import STALLED, STOPPING, Ending
from onceward.events.hints import Hints
from onceward.events.log import Extent, Filter
from onceward.events.paging import read_extent
from onceward.events.replay import Replay, read_replay
from onceward.events.ring import Ring, Span
from onceward.events.tail import Tail
from onceward.events.wire import Ready, Wire

# Clients that are behind read the log at the same time at most so many: the rest of the hub needs the database too.
_READERS = 4
# How often the sessions are looked through for one that has to speak, or cannot.
_TICK_SECONDS_MAX = 0.25
# How long a stop waits for sessions to say good-bye before it cuts them.
_STOP_SECONDS = 2.0


class Follower(Protocol):
    """What the feed needs to know of a session. Times are those of the loop."""

    due: float
    """When it wants to be woken without an event."""
    visitor: Hashable
    """Whose it is, if anybody asks: sessions of one visitor are alike in what they may."""

    def wake(self) -> None: ...

    def is_stalled(self, now: float, stall_seconds: float) -> bool: ...

    def end(self, ending: Ending) -> None: ...

    def cut(self, ending: Ending) -> None:
        """End it although it waits for a client that does not read."""
        ...

    def dismiss(self, ending: Ending) -> None:
        """End it, and cut it if it has not ended the next time."""
        ...


class Feed:
    """One for each process and event loop. It begins to read the log when the first session enters.

    Hints say when to look at the log: `hint`, and, unless `ask_database` is false, the database itself. Without any it
    is looked at every `look_seconds`.
    """

    def __init__(
        self,
        database: Database,
        *,
        heartbeat_seconds: float = 15.0,
        stall_seconds: float = 30.0,
        look_seconds: float = 1.0,
        ask_database: bool = True,
    ) -> None:
        self.heartbeat_seconds = heartbeat_seconds
        self.stall_seconds = stall_seconds
        self.is_stopping = False
        # Counts what has arrived: whoever looked elsewhere meanwhile sees whether to look here again before waiting.
        self.changes = 0
        self._database = database
        self._look_seconds = look_seconds
        self._ask_database = ask_database
        self._hints: Hints | None = None
        self._readers = ThreadPoolExecutor(_READERS, "onceward-replay")
        self._ring = Ring()
        self._tail: Tail | None = None
        self._sessions: set[Follower] = set()
        self._waiting: set[Follower] = set()
        self._tick: asyncio.TimerHandle | None = None
        self._empty = asyncio.Event()
        self._tick_seconds = min(_TICK_SECONDS_MAX, heartbeat_seconds / 4, stall_seconds / 4)

    @property
    def followers(self) -> int:
        """How many sessions there are."""
        return len(self._sessions)

    def hint(self) -> None:
        """Something was committed. Cheap, from any thread; without it other clients hear of the event a little later."""
        if self._hints is not None:
            self._hints.ring()

    @property
    def visitors(self) -> set[Hashable]:
        """Whose sessions there are."""
        return {session.visitor for session in self._sessions if session.visitor is not None}

    def dismiss(self, visitor: Hashable, ending: Ending) -> None:
        """End the sessions of this visitor. Say it again while there are any: some wait for a client that does not read."""
        for session in list(self._sessions):
            if session.visitor == visitor:
                session.dismiss(ending)

    async def stop(self) -> None:
        """End every session with the id to resume from, then the reading. A session that enters later ends at once.
        A second stop has nothing to do.
        """
        self.is_stopping = True
        for session in list(self._sessions):
            session.end(STOPPING)
        await self._until_empty(_STOP_SECONDS)
        for session in list(self._sessions):
            session.cut(STOPPING)
        await self._until_empty(_STOP_SECONDS)
        if self._tick is not None:
            self._tick.cancel()
            self._tick = None
        loop = asyncio.get_running_loop()
        if self._tail is not None:
            tail, self._tail = self._tail, None
            await loop.run_in_executor(None, tail.stop)
        await loop.run_in_executor(None, self._readers.shutdown)

    async def _until_empty(self, seconds: float) -> None:
        if not self._sessions:
            return
        self._empty.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._empty.wait()
        except TimeoutError:
            pass

    # For the sessions.

    def enter(self, session: Follower) -> None:
        self._sessions.add(session)
        if self._tail is None and not self.is_stopping:
            self._hints = Hints(self._database, ask_database=self._ask_database)
            self._tail = Tail(
                self._database,
                self._hints,
                asyncio.get_running_loop(),
                self._begin,
                self._arrive,
                look_seconds=self._look_seconds,
            )
            self._tail.start()
        elif self._tail is not None and not self._tail.eager:
            self._tail.eager = True
            self.hint()
        if self._tick is None:
            self._look_through()
        if self.is_stopping:
            session.end(STOPPING)

    def leave(self, session: Follower) -> None:
        self._sessions.discard(session)
        self._waiting.discard(session)
        if self._sessions:
            return
        self._empty.set()
        if self._tail is not None:
            self._tail.eager = False
        if self._tick is not None:
            self._tick.cancel()
            self._tick = None

    def after(self, cursor: int, wire: Wire, wanted: Filter) -> Span | None:
        """What follows a cursor in memory; None when the log has to be read."""
        return self._ring.after(cursor, wire, wanted)

    async def extent(self) -> Extent:
        """What the log has now; `StoreClosed` after the stop."""
        if self.is_stopping:
            raise StoreClosed("the feed has stopped")
        return await asyncio.get_running_loop().run_in_executor(self._readers, read_extent, self._database)

    async def replay(self, after: int, limit: int, wanted: Filter, wire: Wire) -> Replay:
        """A page of the log, ready to be sent."""
        return await asyncio.get_running_loop().run_in_executor(
            self._readers, read_replay, self._database, after, limit, wanted, wire
        )

    def await_change(self, session: Follower) -> None:
        """Wake this session, once, when there is something new or it is due."""
        self._waiting.add(session)

    # On the loop, for the tail.

    def _begin(self, after: int) -> None:
        self._ring.begin(after)
        self._wake_all()

    def _arrive(self, events: Sequence[Ready]) -> None:
        self._ring.extend(events)
        self._wake_all()

    def _wake_all(self) -> None:
        self.changes += 1
        waiting, self._waiting = self._waiting, set()
        for session in waiting:
            session.wake()

    def _look_through(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        for session in list(self._sessions):
            if session.is_stalled(now, self.stall_seconds):
                session.cut(STALLED)
            elif session.due <= now and session in self._waiting:
                self._waiting.discard(session)
                session.wake()
        self._tick = loop.call_later(self._tick_seconds, self._look_through)
