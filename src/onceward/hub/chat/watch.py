"""Watches on turns: a waiter sleeps until its turn has changed, and all waiters share the reads that detect changes.

A change made in this process wakes its waiters at once, and the end of a turn is handed to them with the turn itself.
Changes made by other processes are found by one query for all watched turns. It reads only their progress, four times a
second. Turns that were just joined or have just changed are read more often, unless they run in this process.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from onceward.core.log_event import log_event
from onceward.errors import StoreUnavailable
from onceward.hub.chat.single_flight import SharedReads
from onceward.hub.chat.turn_view import TurnView
from onceward.hub.db.engine import Database
from onceward.hub.db_threads import in_thread
from onceward.hub.turns.model.stream import Progress, progress_of
from onceward.hub.turns.model.turn import UNFINISHED

_READ_SECONDS = 0.25
# Time for which a turn is read more often, after a wait began or the turn changed: most waits are short.
_FRESH_SECONDS = 0.5
_FRESH_READ_SECONDS = 0.03

_log = logging.getLogger("onceward.hub")


@dataclass(slots=True, eq=False)
class _Watched:
    """A watched turn: its waiters, its progress at the last read, and how long it is read more often."""

    fresh_until: float
    watches: set[Watch] = field(default_factory=set)
    progress: Progress | None = None


class Watches:
    """Watched turns of this process. Belongs to one event loop, and reads only while there are waiters.

    `reads` are the reads that woken waiters share. Each wakeup invalidates them, so that none is older than the change.
    `runs_here` returns whether a turn runs in this process, which wakes its waiters.
    """

    def __init__(
        self, database: Database, reads: SharedReads, runs_here: Callable[[str], bool] = lambda _: False
    ) -> None:
        self._database = database
        self._reads = reads
        self._runs_here = runs_here
        self._turns: dict[str, _Watched] = {}
        self._reading: asyncio.Task[None] | None = None
        self._joined = asyncio.Event()

    @contextlib.contextmanager
    def watching(self, turn_id: str, *, to_end: bool = False) -> Iterator[Watch]:
        """Watch this turn in the block. The caller reads the turn itself: once at the start, and after each wakeup.

        With `to_end`, only the end of the turn wakes the caller, not its progress before that.
        """
        watch = Watch(self, turn_id, to_end=to_end)
        try:
            yield watch
        finally:
            self._leave(watch)

    def wake(self, turn_id: str) -> None:
        """Wake the waiters of a turn that has changed."""
        self._reads.invalidate()
        watched = self._turns.get(turn_id)
        if watched is not None:
            for watch in watched.watches:
                watch.wake()

    def end(self, view: TurnView) -> None:
        """Hand a turn that has ended to its waiters, after the commit."""
        watched = self._turns.get(view.turn.id)
        if watched is not None:
            for watch in watched.watches:
                watch.ended = view
                watch.wake()

    def wake_all(self) -> None:
        for turn_id in self._turns:
            self.wake(turn_id)

    @property
    def is_idle(self) -> bool:
        """True if the reading task does not run, because no turn is watched."""
        return self._reading is None or self._reading.done()

    async def stop(self) -> None:
        """Stop reading, so that the database can be closed."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait({self._reading})

    def _join(self, watch: Watch) -> None:
        fresh_until = time.monotonic() + _FRESH_SECONDS
        watched = self._turns.setdefault(watch.turn_id, _Watched(fresh_until))
        watched.fresh_until = fresh_until
        watched.watches.add(watch)
        self._joined.set()
        if self.is_idle:
            self._reading = asyncio.create_task(self._read_on(), name="onceward-turn-watch")

    def _leave(self, watch: Watch) -> None:
        watched = self._turns[watch.turn_id]
        watched.watches.discard(watch)
        if not watched.watches:
            del self._turns[watch.turn_id]

    async def _read_on(self) -> None:
        all_at, is_failing = time.monotonic() + _READ_SECONDS, False
        while self._turns:
            now = time.monotonic()
            is_all = now >= all_at
            wanted = [turn_id for turn_id, one in self._turns.items() if is_all or self._is_fresh(turn_id, one, now)]
            if is_all:
                all_at = now + _READ_SECONDS
            try:
                progress = await in_thread(self._read, wanted) if wanted else {}
            except Exception as error:  # noqa: BLE001  # also bugs: without this task, waiters would not be woken
                if not is_failing:
                    log_event(
                        _log.warning,
                        "turn_watch_failed",
                        None if isinstance(error, StoreUnavailable) else error,
                        retry_in_seconds=_READ_SECONDS,
                        reason=str(error),
                        hint="until a read succeeds, waiting requests are not notified of changes by other processes",
                    )
                is_failing = True
                await asyncio.sleep(_READ_SECONDS)
                continue
            is_failing = False
            for turn_id in wanted:
                self._compare(turn_id, progress.get(turn_id, ()))
            await self._rest(all_at)

    def _is_fresh(self, turn_id: str, watched: _Watched, now: float) -> bool:
        return watched.fresh_until > now and not self._runs_here(turn_id)

    def _compare(self, turn_id: str, progress: Progress) -> None:
        watched = self._turns.get(turn_id)
        if watched is not None and watched.progress != progress:
            watched.progress = progress
            watched.fresh_until = time.monotonic() + _FRESH_SECONDS
            self._reads.invalidate()
            is_over = not progress or progress[0] not in UNFINISHED
            for watch in watched.watches:
                if is_over or not watch.to_end:
                    watch.wake()

    async def _rest(self, all_at: float) -> None:
        """Sleep until the next read is due or a waiter joins."""
        now = time.monotonic()
        is_fresh = any(self._is_fresh(turn_id, one, now) for turn_id, one in self._turns.items())
        self._joined.clear()
        if is_fresh:
            await asyncio.sleep(_FRESH_READ_SECONDS)
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, all_at - now)):
                await self._joined.wait()

    def _read(self, turn_ids: Sequence[str]) -> dict[str, Progress]:
        with self._database.read() as tx:
            return progress_of(tx, turn_ids)


class Watch:
    """A wait for one turn, which can move on to the turn that superseded it."""

    def __init__(self, watches: Watches, turn_id: str, *, to_end: bool = False) -> None:
        self.turn_id = turn_id
        self.to_end = to_end
        self._watches = watches
        # The turn, once it has ended in this process.
        self.ended: TurnView | None = None
        self._changed = asyncio.Event()
        watches._join(self)  # noqa: SLF001  # the two classes belong together

    def follow(self, turn_id: str) -> None:
        """Watch the superseding turn from now on."""
        self._watches._leave(self)  # noqa: SLF001
        self.turn_id, self.ended = turn_id, None
        self._watches._join(self)  # noqa: SLF001

    def wake(self) -> None:
        self._changed.set()

    async def wait(self, seconds: float) -> bool:
        """Wait up to `seconds` for a change, and return whether there may be one. If so, read the turn again."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, seconds)):
                await self._changed.wait()
        is_changed = self._changed.is_set()
        self._changed.clear()
        return is_changed
