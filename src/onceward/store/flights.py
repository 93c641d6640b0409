"""Batches in flight: sent by an event loop itself, which goes on with other work until the answers are there.

The store's thread needs the interpreter's lock to pack a batch and to read its answers, just while a loop computes: so
server and callers would work by turns. A store that can `start` a batch lets the loop send it in the middle of its
work and hear of the answers from its selector. Half of the callers compute while the server works for the other half:
what they sent meanwhile departs as soon as the flight before it has come, and only then are its answers worked out.

The thread remains for all that has to wait (connecting, sending again, reading, purging), and it brings home a flight
whose loop does not: a loop that is busy, or was closed, must not keep others from the store.

The store lock is held by whoever speaks to the store, and by a flight from its launch to its landing. An interrupt may
come anywhere on the main thread: what it breaks off is told to those aboard, and the lock is given back.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple, cast

from onceward.errors import OncewardError, StoreUnavailable
from onceward.store import BatchFailed, Store
from onceward.store.flight import PATROL_SECONDS, Crew, Flight, Journey, Packed, Packs
from onceward.store.queue import Sent

# Fewer are not worth a batch of their own in the middle of a loop's turn.
EARLY_MIN = 8


class Ahead(NamedTuple):
    """What departs next, and is packed while the journey before it is under way."""

    batch: list[Sent]
    packed: Packed
    behind: Journey
    queued: int  # so many were there to choose from


class Flights:
    """Who speaks to the store: a thread that has it to itself, or one flight in the air."""

    def __init__(self, store: Store) -> None:
        # Asked of the class: a stand-in that hands on what it does not know has not said that it can.
        self._packs = cast("Packs", store) if hasattr(type(store), "pack") else None
        self.lock = threading.Lock()  # held while anyone speaks to the store; taken before the crew's mutex
        self._journey: Journey | None = None
        self._wanted = 0  # so many threads want or have the store: no loop goes before them
        self._thread_first = False  # what is queued needs the thread
        self._handed_over_at = -math.inf
        self._early = EARLY_MIN
        self._ahead: Ahead | None = None  # the crew's mutex guards it
        self._pack_at = 0  # so many are to be queued before more is packed for the flight in the air

    def is_early(self, queued: int) -> bool:
        """Whether so many are worth sending before the loop has come to the end of its turn."""
        return queued >= self._early and self._packs is not None and not self._thread_first and not self.lock.locked()

    def launch(self, crew: Crew, loop: asyncio.AbstractEventLoop) -> None:
        """Send what is queued from this loop, or have the thread do it."""
        if self._packs is None or self._thread_first:
            crew.call_thread()
        elif self._wanted:
            return  # who has the store then, or is about to, looks at the queue when that is done
        elif self.lock.locked():
            journey = self._coming_home_to(loop)
            if journey is None:
                crew.call_thread()
            elif len(crew.queue) >= self._pack_at:
                self._pack_ahead(crew, journey)
        else:
            self._see_off(crew, self._depart(crew, loop))

    def _coming_home_to(self, loop: asyncio.AbstractEventLoop) -> Journey | None:
        """A flight in the air that lands here soon: then what is queued follows it."""
        journey = self._journey
        if journey is None or journey.loop is not loop or journey.is_stranded:
            return None
        return journey if time.monotonic() < journey.since + PATROL_SECONDS else None

    def _pack_ahead(self, crew: Crew, journey: Journey) -> None:
        """While there is time: the store has nothing to do between two flights. All stays in the queue, for whoever comes
        first, and nothing is packed that hangs on the answers to come.
        """
        with crew.mutex:
            # Not much more than half of all who are under way, so that there are always two parts to work on.
            batch = crew.queue.first(max(EARLY_MIN, (len(crew.queue) + len(journey.batch) + 1) // 2))
            queued = len(crew.queue)
            # To look through the queue at every turn would cost more than to send it, however little was added.
            self._pack_at = queued + max(EARLY_MIN, queued // 4)
            ahead, self._ahead = self._ahead, None
        if batch and _are_apart(batch, journey.batch):
            with contextlib.suppress(Exception):  # as it will be when the store is free, and is seen to then
                self._ahead = Ahead(batch, self._packed(ahead, batch), journey, queued)

    def _packed(self, ahead: Ahead | None, batch: list[Sent]) -> Packed:
        """All of the batch; what was packed ahead is used if the batch begins so."""
        if ahead is None or batch[: len(ahead.batch)] != ahead.batch:
            done, packed = 0, cast("Packs", self._packs).pack()
        else:
            done, packed = len(ahead.batch), ahead.packed
        packed.add([sent.write for sent in batch[done:]])
        return packed

    def look_at(self, *, queued: bool) -> float:
        """When the thread has to see whether the loops come for their flights, and for what is queued."""
        journey = self._journey
        if journey is not None:
            return journey.late_at
        return self._handed_over_at + PATROL_SECONDS if queued else math.inf

    def _see_off(self, crew: Crew, journey: Journey | None) -> None:
        if journey is None or journey.is_stranded:
            crew.call_thread()
        else:
            crew.call_thread_at(journey.late_at)

    def _depart(self, crew: Crew, loop: asyncio.AbstractEventLoop, before: Journey | None = None) -> Journey | None:
        """The store lock goes with the journey, or is given back: to the one `before`, where that still had it."""
        batch: list[Sent] = []
        flight: Flight | None = None
        journey: Journey | None = None
        ahead: Ahead | None = None
        is_ours = False
        try:
            is_ours = before is not None or self.lock.acquire(blocking=False)
            with crew.mutex:
                if is_ours and not self._wanted:
                    ahead, self._ahead = self._ahead, None
                    if before is None:
                        batch = crew.queue.gather()
                    elif ahead is not None and crew.queue.take(ahead.batch):
                        batch = ahead.batch
            if batch and self._packs is not None:
                flight = self._packed(ahead, batch).depart()
            if flight is not None:
                journey = Journey(flight, batch, loop, crew)
                journey.listen(self._land)
                self._journey, self._pack_at = journey, 1
        except BatchFailed:
            flight = None  # the thread finds out whose fault it is
        except BaseException as error:
            if journey is not None:
                journey.over = True
                journey.deafen()
                journey = None
            if flight is not None:
                flight.give_up()
            crew.fail(batch, _told(error))
            batch = []
            if not isinstance(error, Exception):  # an interrupt goes on to the loop
                raise
        finally:
            if is_ours and journey is None:
                self._thread_first = bool(batch)
                with crew.mutex:
                    crew.queue.restore(batch)
                if before is None:
                    self.lock.release()
        return journey

    def _land(self, journey: Journey) -> None:
        """On the loop: something has come."""
        crew, is_ours = journey.crew, False
        try:
            with journey.lock:
                if not journey.over:
                    if not journey.flight.poll():
                        return
                    if not journey.flight.grounded:
                        is_ours = journey.over = True
            if is_ours:
                self._let_next_follow(journey)
                crew.bring(journey.batch, journey.flight.finish, functools.partial(self._take_apart_later, crew))
            else:
                journey.deafen()
                crew.call_thread()
        except BaseException as error:
            with journey.lock:
                is_ours = is_ours or not journey.over
                journey.over = True
            if is_ours:
                self._lose(journey, error)
            if not isinstance(error, Exception):
                raise
        finally:
            if is_ours and self._journey is journey:  # and no other has departed since
                self._journey = None
                self.lock.release()
        if is_ours:
            self._forget_what_is_behind(journey)
            journey.deafen()
            self._early = max(EARLY_MIN, len(journey.batch) // 2)
            crew.set_going(journey.loop)

    def _let_next_follow(self, journey: Journey) -> None:
        crew = journey.crew
        if not journey.flight.received or self._thread_first:
            return
        ahead = self._ahead
        if ahead is None or ahead.behind is not journey or ahead.queued != len(crew.queue):
            self._pack_ahead(crew, journey)
        if self._ahead is not None:
            following = self._depart(crew, journey.loop, journey)
            if following is not None:
                self._see_off(crew, following)

    def _forget_what_is_behind(self, journey: Journey) -> None:
        """It did not follow, and is packed anew by whoever sends it."""
        if self._ahead is not None and self._ahead.behind is journey:
            self._ahead = None

    def _take_apart_later(self, crew: Crew, batch: list[Sent]) -> None:
        self._thread_first = True
        with crew.mutex:
            crew.queue.restore(batch)

    def _lose(self, journey: Journey, error: BaseException) -> None:
        if not journey.flight.received:
            journey.flight.give_up()
        journey.crew.fail(journey.batch, _told(error))

    @contextmanager
    def store_to_oneself(self, crew: Crew) -> Iterator[None]:
        """Wait for the store, on a thread. A flight in the air lands first, by its loop or else from here."""
        with crew.mutex:
            self._wanted += 1
        is_ours = False
        try:
            while not is_ours:
                is_ours = self._take()
            self._thread_first = False
            yield
        finally:
            with crew.mutex:
                self._wanted -= 1
            if is_ours:
                self.lock.release()

    def hand_over(self, crew: Crew, loop: asyncio.AbstractEventLoop | None) -> bool:
        """Leave what is queued to this loop, if it can send; should it be busy, the thread is back soon. The caller holds
        the mutex, and not the store.
        """
        if self._packs is None or self._thread_first or loop is None:
            return False
        try:
            loop.call_soon_threadsafe(crew.set_going, loop)
        except RuntimeError:  # closed with its callers
            return False
        self._handed_over_at = time.monotonic()
        return True

    def _take(self) -> bool:
        journey = self._journey
        if journey is None or not journey.is_stranded:
            if self.lock.acquire(timeout=PATROL_SECONDS):
                return True
            journey = self._journey
        return journey is not None and self._bring_home(journey)

    def _bring_home(self, journey: Journey) -> bool:
        """False when its loop was faster. Otherwise the store is now ours: the flight had it."""
        is_ours = False
        try:
            with journey.lock:
                if journey.over:
                    return False
                is_ours = journey.over = True
            self._forget_what_is_behind(journey)
            journey.deafen_from_afar()
            journey.crew.bring(journey.batch, journey.flight.finish, journey.crew.halve)
            self._journey = None
        except BaseException as error:
            if is_ours:
                self._lose(journey, error)
                self._journey = None
                self.lock.release()
            raise
        return True


def _are_apart(batch: list[Sent], other: list[Sent]) -> bool:
    keys = {(sent.write.scope, sent.write.key) for sent in batch}
    return keys.isdisjoint((sent.write.scope, sent.write.key) for sent in other)


def _told(error: BaseException) -> OncewardError:
    if isinstance(error, OncewardError):
        return error
    if isinstance(error, Exception):
        return StoreUnavailable(f"the store failed unexpectedly: {error!r}")
    return StoreUnavailable("the commit was interrupted")
