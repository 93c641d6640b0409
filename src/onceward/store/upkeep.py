"""What the I/O thread does beside batches: renew claims that are being worked on, and watch keys that others hold.

Nothing here touches the store or a lock: the batcher asks what is due, does it, and hands the findings back.
"""

from __future__ import annotations

import heapq
import itertools
import math
import threading
from collections.abc import Iterable
from dataclasses import dataclass

from onceward.core.claim import Answer, Entry, Move, Ref, Status, Verb
from onceward.core.record import record
from onceward.errors import OncewardError
from onceward.store.pending import Pending

# A waiting caller looks after its key this often at first, and this often in the end.
POLL_SECONDS_MIN = 0.010
POLL_SECONDS_MAX = 0.250
POLL_GROWTH = 1.5


@record(frozen=True, slots=True)
class Seen:
    """What a watch ended with: the entry as last read, and whether its holder is proved dead."""

    entry: Entry | None
    now: int
    dead: bool = False

    @property
    def over(self) -> bool:
        """Nobody holds the key any more, or it could be taken over."""
        entry = self.entry
        return entry is None or entry.status is not Status.IN_PROGRESS or entry.lapsed(self.now) or self.dead


class Watch(Pending[Seen]):
    """Waits until a held key is held no longer, or could be taken over, or the time is up."""

    __slots__ = ("interval", "next_at", "ref", "until")

    def __init__(self, ref: Ref, now: float, seconds: float, mutex: threading.Lock, grace: float) -> None:
        super().__init__(mutex, seconds + grace)
        self.ref = ref
        self.interval = POLL_SECONDS_MIN
        self.next_at = now + POLL_SECONDS_MIN
        self.until = now + seconds


@dataclass(slots=True, eq=False)
class Keep:
    """A claim to be renewed every third of its lease, until `until`."""

    entry: Entry
    lease: int
    retain: int
    every: float
    next_at: float
    until: float
    renewal: Pending[Answer] | None = None

    def move(self, write_id: str) -> Move:
        entry = self.entry
        return Move(entry.scope, entry.key, write_id, Verb.RENEW, entry.version, lease=self.lease, retain=self.retain)


class Upkeep:
    """The caller holds the batcher's mutex around every method."""

    def __init__(self) -> None:
        self._keeps: dict[int, Keep] = {}
        # Never later than the earliest renewal due, so that most calls need not look through the claims.
        self._keeps_at = math.inf
        self._watches: list[Watch] = []
        self._naps: list[tuple[float, int, Pending[None]]] = []
        self._order = itertools.count()

    def next_at(self) -> float:
        """When something is due; infinity when nothing is."""
        moment = self._keeps_at if self._keeps else math.inf
        if self._watches:
            moment = min(moment, *(watch.next_at for watch in self._watches))
        return min(moment, self._naps[0][0]) if self._naps else moment

    def keep(self, kept: Keep) -> None:
        self._keeps[id(kept)] = kept
        self._keeps_at = min(self._keeps_at, kept.next_at)

    def drop(self, kept: Keep) -> None:
        self._keeps.pop(id(kept), None)
        if kept.renewal is not None:
            kept.renewal.abandoned = True

    def watch(self, watch: Watch) -> None:
        self._watches.append(watch)

    def nap(self, until: float, pending: Pending[None]) -> None:
        heapq.heappush(self._naps, (until, next(self._order), pending))

    def renewals(self, now: float) -> list[Keep]:
        """The claims to renew now. Those that are lost, or ran too long, are forgotten."""
        if now < self._keeps_at:
            return []
        due = []
        for kept in list(self._keeps.values()):
            if kept.next_at > now:
                continue
            last = kept.renewal
            answered = last is not None and last.done
            if now >= kept.until or (last is not None and answered and not _renewed(last)):
                del self._keeps[id(kept)]
                continue
            kept.next_at = now + kept.every
            if last is None or answered:
                due.append(kept)
        self._keeps_at = min((kept.next_at for kept in self._keeps.values()), default=math.inf)
        return due

    def rested(self, now: float) -> list[Pending[None]]:
        """The naps that are over."""
        over = []
        while self._naps and self._naps[0][0] <= now:
            over.append(heapq.heappop(self._naps)[2])
        return over

    def due(self, now: float) -> list[Watch]:
        """The watches whose keys are to be read now; those nearly due come along."""
        if not self._watches:
            return []
        self._watches = [watch for watch in self._watches if not watch.done and not watch.abandoned]
        return [watch for watch in self._watches if watch.next_at <= now + POLL_SECONDS_MIN / 2]

    def judge(self, due: Iterable[Watch], seen: dict[Ref, Seen], now: float) -> list[tuple[Watch, Seen]]:
        """Which watches are over; the others wait longer than before."""
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

    def told(self, answers: dict[Ref, Answer]) -> list[tuple[Watch, Seen]]:
        """Watches that a batch of this very process has just answered."""
        over = []
        for watch in self._watches:
            answer = answers.get(watch.ref)
            if answer is not None and not watch.done:
                seen = Seen(answer.entry, answer.now)
                if seen.over:
                    over.append((watch, seen))
        return over

    @property
    def watching(self) -> bool:
        return bool(self._watches)

    def stop(self) -> list[Pending[object]]:
        """Forget everything; whoever still waits is returned."""
        waiting = [*self._watches, *(nap for _, _, nap in self._naps)]
        self._keeps, self._watches, self._naps = {}, [], []
        return waiting  # type: ignore[return-value]  # pendings of every kind


def _renewed(renewal: Pending[Answer]) -> bool:
    """False only when the store said that the claim is gone; an unanswered renewal is tried again."""
    try:
        answer = renewal.result()
    except OncewardError:
        return True
    return answer.applied or answer.locked
