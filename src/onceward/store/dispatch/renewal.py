"""Renewals of claims, watches of keys that other processes hold, and timers.

This module neither uses the store nor takes a lock. The batcher asks it what is due, does that, and passes back the
results.
"""

from __future__ import annotations

import heapq
import itertools
import math
import threading
from collections.abc import Iterable
from dataclasses import dataclass

from onceward.core.claim import Entry, Move, Ref, Status, Verb, WriteResult
from onceward.core.record import record
from onceward.errors import OncewardError
from onceward.store.dispatch.future import StoreFuture

# The poll interval of a watched key, at first and at most.
POLL_SECONDS_MIN = 0.010
POLL_SECONDS_MAX = 0.250
POLL_GROWTH = 1.5


@record(frozen=True, slots=True)
class WatchResult:
    """The result of a watch.

    Attributes:
        entry: The entry as last read, or None.
        now: The time of that read, by the store's clock.
        dead: Whether the holder is proved dead.
    """

    entry: Entry | None
    now: int
    dead: bool = False

    @property
    def over(self) -> bool:
        """True if the key is no longer held, or could be taken over."""
        entry = self.entry
        return entry is None or entry.status is not Status.IN_PROGRESS or entry.lapsed(self.now) or self.dead


class KeyWatch(StoreFuture[WatchResult]):
    """A wait until a key is no longer held, could be taken over, or the time is up."""

    __slots__ = ("interval", "next_at", "ref", "until")

    def __init__(self, ref: Ref, now: float, seconds: float, mutex: threading.Lock, grace: float) -> None:
        super().__init__(mutex, seconds + grace)
        self.ref = ref
        self.interval = POLL_SECONDS_MIN
        self.next_at = now + POLL_SECONDS_MIN
        self.until = now + seconds


@dataclass(slots=True, eq=False)
class Renewal:
    """A claim that is renewed every third of its lease, until the time `until`."""

    entry: Entry
    lease: int
    retain: int
    every: float
    next_at: float
    until: float
    last_write: StoreFuture[WriteResult] | None = None

    def move(self, write_id: str) -> Move:
        entry = self.entry
        return Move(entry.scope, entry.key, write_id, Verb.RENEW, entry.version, lease=self.lease, retain=self.retain)


class Renewals:
    """The renewals, watches and timers of a batcher. The caller of each method holds the batcher's mutex."""

    def __init__(self) -> None:
        self._active: dict[int, Renewal] = {}
        # Never later than the earliest renewal, so that most calls need not search the claims.
        self._next_renewal_at = math.inf
        self._watches: list[KeyWatch] = []
        self._timers: list[tuple[float, int, StoreFuture[None]]] = []
        self._order = itertools.count()

    def next_at(self) -> float:
        """Return the time at which something is due, or infinity."""
        earliest = self._next_renewal_at if self._active else math.inf
        if self._watches:
            earliest = min(earliest, *(watch.next_at for watch in self._watches))
        return min(earliest, self._timers[0][0]) if self._timers else earliest

    def add(self, renewal: Renewal) -> None:
        self._active[id(renewal)] = renewal
        self._next_renewal_at = min(self._next_renewal_at, renewal.next_at)

    def remove(self, renewal: Renewal) -> None:
        self._active.pop(id(renewal), None)
        if renewal.last_write is not None:
            renewal.last_write.abandoned = True

    def add_watch(self, watch: KeyWatch) -> None:
        self._watches.append(watch)

    def add_timer(self, until: float, future: StoreFuture[None]) -> None:
        heapq.heappush(self._timers, (until, next(self._order), future))

    def due_renewals(self, now: float) -> list[Renewal]:
        """Return the claims to renew now. Claims that are lost, or ran too long, are forgotten."""
        if now < self._next_renewal_at:
            return []
        due = []
        for renewal in list(self._active.values()):
            if renewal.next_at > now:
                continue
            last = renewal.last_write
            decided = last is not None and last.done
            if now >= renewal.until or (last is not None and decided and not _may_be_held(last)):
                del self._active[id(renewal)]
                continue
            renewal.next_at = now + renewal.every
            if last is None or decided:
                due.append(renewal)
        self._next_renewal_at = min((renewal.next_at for renewal in self._active.values()), default=math.inf)
        return due

    def elapsed_timers(self, now: float) -> list[StoreFuture[None]]:
        """Remove and return the timers that have elapsed."""
        over = []
        while self._timers and self._timers[0][0] <= now:
            over.append(heapq.heappop(self._timers)[2])
        return over

    def due_watches(self, now: float) -> list[KeyWatch]:
        """Return the watches whose keys must be read now, and those that are nearly due."""
        if not self._watches:
            return []
        self._watches = [watch for watch in self._watches if not watch.done and not watch.abandoned]
        return [watch for watch in self._watches if watch.next_at <= now + POLL_SECONDS_MIN / 2]

    def finished_watches(
        self, due: Iterable[KeyWatch], seen: dict[Ref, WatchResult], now: float
    ) -> list[tuple[KeyWatch, WatchResult]]:
        """Return the watches that are over. The others get a longer interval."""
        over = []
        for watch in due:
            found = seen.get(watch.ref)
            if found is None:
                continue
            if found.over or now >= watch.until:
                over.append((watch, found))
            else:
                watch.interval = min(watch.interval * POLL_GROWTH, POLL_SECONDS_MAX)
                watch.next_at = min(now + watch.interval, max(watch.until, now + POLL_SECONDS_MIN))
        return over

    def watches_finished_by(self, results: dict[Ref, WriteResult]) -> list[tuple[KeyWatch, WatchResult]]:
        """Return the watches that the results of a batch of this process have ended."""
        over = []
        for watch in self._watches:
            result = results.get(watch.ref)
            if result is not None and not watch.done:
                seen = WatchResult(result.entry, result.now)
                if seen.over:
                    over.append((watch, seen))
        return over

    @property
    def watching(self) -> bool:
        return bool(self._watches)

    def stop(self) -> list[StoreFuture[object]]:
        """Forget everything, and return the futures that are still waited for."""
        waiting = [*self._watches, *(timer for _, _, timer in self._timers)]
        self._active, self._watches, self._timers = {}, [], []
        return waiting  # type: ignore[return-value]  # futures of every kind


def _may_be_held(last_write: StoreFuture[WriteResult]) -> bool:
    """Return whether the claim may still be held: false only if the store refused. A failed renewal is tried again."""
    try:
        result = last_write.result()
    except OncewardError:
        return True
    return result.applied or result.locked
