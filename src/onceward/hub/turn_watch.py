"""Waiting for turns: whoever waits sleeps until its turn has changed, and all who wait share the reads that find it out.

A change made in this process wakes its waiters at once. Changes made elsewhere are found by one statement for all turns
that somebody waits for. It reads where they stand and nothing else, four times a second; for a turn that somebody has
just begun to wait for, or that has just changed, more often.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from onceward.db.engine import Database
from onceward.errors import StoreUnavailable
from onceward.hub.looks import Looks
from onceward.turns.stream import Progress, progress_of
from onceward.turns.threads import in_thread

_READ_SECONDS = 0.25
# A turn is fresh for this long, and then read this often: most waits are short.
_FRESH_SECONDS = 0.5
_FRESH_READ_SECONDS = 0.03

_log = logging.getLogger("onceward.hub")


@dataclass(slots=True, eq=False)
class _Watched:
    """A turn that somebody waits for: how it stood when it was read last, and until when it is fresh."""

    fresh_until: float
    watches: set[Watch] = field(default_factory=set)
    stood: Progress | None = None


class Watches:
    """Those who wait for turns in this process. Belongs to one event loop; reads only while there is somebody.

    `looks` are the reads that waiters share when they are woken: none of them may be older than what woke them.
    """

    def __init__(self, database: Database, looks: Looks) -> None:
        self._database = database
        self._looks = looks
        self._turns: dict[str, _Watched] = {}
        self._reading: asyncio.Task[None] | None = None
        self._joined = asyncio.Event()

    @contextlib.contextmanager
    def watching(self, turn_id: str) -> Iterator[Watch]:
        """Wait for this turn. What it shows is read by whoever waits, after this began and after each piece of news."""
        watch = Watch(self, turn_id)
        try:
            yield watch
        finally:
            self._leave(watch)

    def wake(self, turn_id: str) -> None:
        """There is something new to see of this turn."""
        self._looks.news()
        watched = self._turns.get(turn_id)
        if watched is not None:
            for watch in watched.watches:
                watch.wake()

    def wake_all(self) -> None:
        for turn_id in self._turns:
            self.wake(turn_id)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is read, because nobody waits."""
        return self._reading is None or self._reading.done()

    async def stop(self) -> None:
        """Read no more, so that the database can be closed."""
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
            self._reading = asyncio.create_task(self._read_on(), name="reading where turns stand")

    def _leave(self, watch: Watch) -> None:
        watched = self._turns[watch.turn_id]
        watched.watches.discard(watch)
        if not watched.watches:
            del self._turns[watch.turn_id]

    async def _read_on(self) -> None:
        all_at, is_failing = 0.0, False
        while self._turns:
            now = time.monotonic()
            is_all = now >= all_at
            wanted = [turn_id for turn_id, one in self._turns.items() if is_all or one.fresh_until > now]
            if is_all:
                all_at = now + _READ_SECONDS
            try:
                stands = await in_thread(self._read, wanted) if wanted else {}
            except Exception as error:  # noqa: BLE001  # also a bug: without this task nobody who waits would be woken
                if not is_failing:
                    is_bug = not isinstance(error, StoreUnavailable)
                    _log.warning("waiting requests do not hear of other processes: %s", error, exc_info=is_bug)
                is_failing = True
                await asyncio.sleep(_READ_SECONDS)
                continue
            is_failing = False
            for turn_id in wanted:
                self._compare(turn_id, stands.get(turn_id, ()))
            await self._rest(all_at)

    def _compare(self, turn_id: str, stands: Progress) -> None:
        watched = self._turns.get(turn_id)
        if watched is not None and watched.stood != stands:
            watched.stood = stands
            watched.fresh_until = time.monotonic() + _FRESH_SECONDS
            self.wake(turn_id)

    async def _rest(self, all_at: float) -> None:
        """Until the next read is due, or somebody has come."""
        now = time.monotonic()
        is_fresh = any(one.fresh_until > now for one in self._turns.values())
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
    """One who waits for a turn, and from then on perhaps for the one that took its place."""

    def __init__(self, watches: Watches, turn_id: str) -> None:
        self.turn_id = turn_id
        self._watches = watches
        self._news = asyncio.Event()
        watches._join(self)  # noqa: SLF001  # the two are one thing

    def follow(self, turn_id: str) -> None:
        """From now on it is about the turn that took the other one's place."""
        self._watches._leave(self)  # noqa: SLF001
        self.turn_id = turn_id
        self._watches._join(self)  # noqa: SLF001

    def wake(self) -> None:
        self._news.set()

    async def wait(self, seconds: float) -> bool:
        """Until there may be something new to see, at most so long. Whether there is: then read again, and what comes
        after that read is news again.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, seconds)):
                await self._news.wait()
        is_news = self._news.is_set()
        self._news.clear()
        return is_news
