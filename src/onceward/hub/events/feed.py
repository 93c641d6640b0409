"""Event feed of a process: a ring of new events, and the sessions of the clients that follow the log.

Theory of operation
===================

    transaction --append--> event log --pages--> tail thread --events--> ring --spans--> session --> client
                               |                     ^                                     ^
                               +--- notification ----+                                     |
                               +--- catch-up pages, for cursors older than the ring -------+

The log. A change and its event are committed in one transaction. Triggers refuse every UPDATE of an event, and every
DELETE except that of retention, which first raises `oldest_event_id`. So the events from `oldest_event_id` to the last
one are complete and do not change. The log is the only source of events: everything else here is a cache or a signal,
and can be lost.

Ids and commit order. `event_id` is never reused and grows in the order of the commits. SQLite has one writer at a time.
On PostgreSQL, transactions run concurrently, so `append` takes one lock before it draws ids and holds it until the
commit. No event with a smaller id can therefore appear after one with a larger id: a reader that sees an event can see
every event before it. Numbers may be skipped, because PostgreSQL does not give back the ids of a transaction that is
rolled back. Nothing depends on consecutive numbers.

Cursors. A cursor is the id of the last event that a client has. It is the whole state of a client. "The events after my
cursor" has one correct result, whether it is read from the ring, from the database, or by another process. A session
moves its cursor only after the server has accepted the write of an event. It therefore never skips an event, and it
sends each event once, in the order of the ids.

Notifications and polling. A notification says that the log may have grown. It carries no data, so it may be lost,
duplicated or wrong. After a commit, the code of this process calls `notify`. Commits of other processes are noticed by
LISTEN on PostgreSQL, and on SQLite by a check of `PRAGMA data_version` every 20 ms, both only while a client is
connected. The tail reads the log after a notification and, in any case, every `poll_seconds`. Notifications only make
events arrive sooner.

Tail and ring. One thread, the tail, reads new events page by page, encodes each once for all clients, and hands the
page to the event loop. It waits until the loop has taken a page, so a busy loop leaves events in the log and does not
fill the memory. The ring has the newest events, bounded in number and bytes. The tail starts with the first session,
some events before the end of the log, so that clients that reconnect after a restart find theirs in the ring.

Catch-up, then live. A session repeats one step: ask the ring for the events after its cursor. If the cursor is before
the ring, it reads a page from the database and sends that. If the ring has events, it sends them. If the cursor is at
the end, it waits. Both sources are read by the same cursor, so no event is lost or sent twice when a session changes
from one to the other. New events may arrive while a page is read; `changes` counts arrivals, so that the session
notices them before it waits. `caught_up` is sent once, when the cursor has reached the end that the log had at the
handshake (`replay_until`).

Slow clients. Clients have no queues. A write waits until the server accepts more bytes, and only that session waits. A
slow client falls out of the ring and then reads pages of the log, of which one at a time is in memory. It can neither
delay other clients nor fill the memory. A client that takes no bytes at all for `stall_seconds` is closed, with the id
to resume from.

Gaps. If retention has deleted events after a client's cursor, the client gets a `gap` mark with the oldest event that
is left, and its cursor moves there. Events are never skipped silently.

Epoch of the log. A new, empty database counts ids from 1 again, so an old cursor would point to the wrong events. Each
log has a random `log_epoch`, made together with its tables. A client that sends the epoch it knows is refused if it
differs (`other-log`). A cursor beyond the end of the log is refused in any case (`future-cursor`).

Reconnects. A client connects again with its cursor, to this process or another one, and continues after it. The hub
remembers nothing about a closed session. The id in `resume after …` is the session's cursor. The client's own cursor
can be older, because written bytes may not have arrived. A client that uses its own cursor gets those events again, so
it misses nothing. To process each event once, it stores its cursor together with its results.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from onceward.errors import StoreClosed
from onceward.hub.db.engine import Database
from onceward.hub.events.catch_up import CatchUpPage, read_catch_up
from onceward.hub.events.framing import EncodedEvent, Framing
from onceward.hub.events.handshake import STALLED, STOPPING, CloseReason
from onceward.hub.events.log import Extent, Filter
from onceward.hub.events.notifications import Notifications
from onceward.hub.events.paging import read_extent
from onceward.hub.events.ring import Ring, Span
from onceward.hub.events.tail import Tail

# Concurrent catch-up reads. Few, because the rest of the hub needs the database too.
_READERS = 4
# How often sessions are checked for a due heartbeat or a stalled write.
_TICK_SECONDS_MAX = 0.25
# How long a stop waits for sessions to send their close before it cuts them.
_STOP_SECONDS = 2.0


class Follower(Protocol):
    """A session, as far as the feed uses it. Times are those of the loop."""

    due: float
    """The time at which to wake it even without an event."""
    owner: Hashable
    """The credentials it belongs to, or None; `Feed.dismiss` ends all sessions of one owner."""

    def wake(self) -> None: ...

    def is_stalled(self, now: float, stall_seconds: float) -> bool: ...

    def end(self, reason: CloseReason) -> None: ...

    def cut(self, reason: CloseReason) -> None:
        """End the session, even while it waits for a client that does not read."""
        ...

    def dismiss(self, reason: CloseReason) -> None:
        """End the session at the first call. A later call cuts it if it still waits for a client that does not read."""
        ...


class Feed:
    """The feed of one process and event loop. It starts to read the log when the first session enters.

    Args:
        database: The hub's database.
        heartbeat_seconds: The silence after which a client gets a heartbeat.
        stall_seconds: The time without progress of a write after which a client is cut.
        poll_seconds: The longest time between two reads of the log.
        ask_database: Whether the database is asked for notifications. `notify` works in any case.
    """

    def __init__(
        self,
        database: Database,
        *,
        heartbeat_seconds: float = 15.0,
        stall_seconds: float = 30.0,
        poll_seconds: float = 1.0,
        ask_database: bool = True,
    ) -> None:
        self.heartbeat_seconds = heartbeat_seconds
        self.stall_seconds = stall_seconds
        self.is_stopping = False
        # Counts arrivals. A session that read the database meanwhile checks it before it waits.
        self.changes = 0
        self._database = database
        self._poll_seconds = poll_seconds
        self._ask_database = ask_database
        self._notifications: Notifications | None = None
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
        """The number of sessions."""
        return len(self._sessions)

    def notify(self) -> None:
        """Signal that an event was committed. Cheap and thread-safe. Without it, clients get the event a bit later."""
        if self._notifications is not None:
            self._notifications.notify()

    @property
    def owners(self) -> set[Hashable]:
        """The owners of the sessions."""
        return {session.owner for session in self._sessions if session.owner is not None}

    def dismiss(self, owner: Hashable, reason: CloseReason) -> None:
        """End the sessions of this owner. Call it again until there are none: some may wait for a client to read."""
        for session in list(self._sessions):
            if session.owner == owner:
                session.dismiss(reason)

    async def stop(self) -> None:
        """End every session, each with the id to resume after, then stop reading the log.

        A session that enters later ends at once. A second call does nothing.
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
        """Add a session. The first one starts the tail."""
        self._sessions.add(session)
        if self._tail is None and not self.is_stopping:
            self._notifications = Notifications(self._database, ask_database=self._ask_database)
            self._tail = Tail(
                self._database,
                self._notifications,
                asyncio.get_running_loop(),
                self._begin,
                self._arrive,
                poll_seconds=self._poll_seconds,
            )
            self._tail.start()
        elif self._tail is not None and not self._tail.eager:
            self._tail.eager = True
            self.notify()
        if self._tick is None:
            self._check_sessions()
        if self.is_stopping:
            session.end(STOPPING)

    def leave(self, session: Follower) -> None:
        """Remove a session. After the last one, the database is no longer asked for notifications."""
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

    def after(self, cursor: int, framing: Framing, wanted: Filter) -> Span | None:
        """Return the events in memory that follow a cursor; None if the database has to be read."""
        return self._ring.after(cursor, framing, wanted)

    async def extent(self) -> Extent:
        """Return the current extent of the log. Raises `StoreClosed` after the stop."""
        if self.is_stopping:
            raise StoreClosed("the feed has stopped")
        return await asyncio.get_running_loop().run_in_executor(self._readers, read_extent, self._database)

    async def catch_up(self, after: int, limit: int, wanted: Filter, framing: Framing) -> CatchUpPage:
        """Return a page of the log, ready to be sent."""
        return await asyncio.get_running_loop().run_in_executor(
            self._readers, read_catch_up, self._database, after, limit, wanted, framing
        )

    def await_change(self, session: Follower) -> None:
        """Wake this session, once, when events arrive or it is due."""
        self._waiting.add(session)

    # For the tail, called on the loop.

    def _begin(self, after: int) -> None:
        self._ring.begin(after)
        self._wake_all()

    def _arrive(self, events: Sequence[EncodedEvent]) -> None:
        self._ring.extend(events)
        self._wake_all()

    def _wake_all(self) -> None:
        self.changes += 1
        waiting, self._waiting = self._waiting, set()
        for session in waiting:
            session.wake()

    def _check_sessions(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        for session in list(self._sessions):
            if session.is_stalled(now, self.stall_seconds):
                session.cut(STALLED)
            elif session.due <= now and session in self._waiting:
                self._waiting.discard(session)
                session.wake()
        self._tick = loop.call_later(self._tick_seconds, self._check_sessions)
