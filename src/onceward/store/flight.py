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
import functools
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, cast

from onceward.core.claim import Answer, Write
from onceward.errors import OncewardError, StoreUnavailable
from onceward.store import BatchFailed, Store
from onceward.store.queue import Sent

# So long a loop may take to come for its flight while others want the store, or are aboard.
PATROL_SECONDS = 0.05
# So often the thread looks whether a flight was forgotten by a loop that is gone.
LOOK_SECONDS = 1.0
# Fewer are not worth a batch of their own in the middle of a loop's turn.
EARLY_MIN = 8


class Flight(Protocol):
    """A batch that was sent. One thread at a time has to do with it."""

    @property
    def grounded(self) -> bool:
        """Whether `finish` has to wait for more than the answers: not on a loop."""
        ...

    @property
    def received(self) -> bool:
        """Whether everything has come and is well: `finish` only works it out, and the store may be used meanwhile."""
        ...

    def fileno(self) -> int:
        """What becomes readable when something has come."""
        ...

    def poll(self) -> bool:
        """Take in what has come, without waiting. True when there is nothing more to come; what went wrong shows then."""
        ...

    def finish(self) -> list[Answer]:
        """The answers, waiting for what has not come; raises what `commit` raises."""
        ...

    def give_up(self) -> None:
        """Nobody will take in what comes: it must not be taken for the answers to something else."""
        ...


class Starts(Protocol):
    """A store that can send a batch without waiting for its answers."""

    def start(self, writes: Sequence[Write]) -> Flight | None:
        """Begin what `commit` does. None, with nothing sent, where something has to be waited for first.

        Until the flight is received, or else finished, the store is not used otherwise.
        """
        ...


class Crew(Protocol):
    """What the batcher does for flights."""

    mutex: threading.Lock

    def gather(self, beside: int = 0) -> list[Sent]:
        """The next batch, out of the queue: all, or not much more than half of what there is `beside` those whose
        answers have just come, so that there are always two parts to work on. The caller holds the mutex.
        """
        ...

    def restore(self, batch: list[Sent]) -> None:
        """Put back what was gathered."""
        ...

    def may_follow(self, batch: list[Sent]) -> bool:
        """Whether something is queued, and nothing of it hangs on the answers to this batch."""
        ...

    def bring(self, batch: list[Sent], ask: Callable[[], list[Answer]], apart: Callable[[list[Sent]], None]) -> None:
        """Ask for the answers of a batch and hand them out; one that fails because of its data is taken `apart`."""
        ...

    def halve(self, batch: list[Sent]) -> None:
        """Commit a batch in two, waiting for it."""
        ...

    def fail(self, batch: list[Sent], error: OncewardError) -> None:
        """Tell everyone aboard who has not been answered."""
        ...

    def set_going(self, loop: asyncio.AbstractEventLoop) -> None:
        """Get what is queued on its way."""
        ...

    def call_thread(self) -> None:
        """Have the store's thread awake at once."""
        ...

    def call_thread_at(self, moment: float) -> None:
        """Have it look after flights then (`Flights.look_at`)."""
        ...


class Journey:
    """A flight, the writes aboard, and the loop that hears of its landing."""

    __slots__ = ("_ear", "batch", "crew", "flight", "late_at", "lock", "loop", "over", "since")

    def __init__(self, flight: Flight, batch: list[Sent], loop: asyncio.AbstractEventLoop, crew: Crew) -> None:
        self._ear = -1
        self.flight = flight
        self.batch = batch
        self.loop = loop
        self.crew = crew
        self.since = time.monotonic()
        # A loop that never comes is found out, sooner where it has others aboard.
        alone = all(sent.loop is loop for sent in batch)
        self.late_at = self.since + (LOOK_SECONDS if alone else PATROL_SECONDS)
        self.lock = threading.Lock()  # held for moments: while what has come is taken in, and while `over` is decided
        self.over = False  # somebody ends it; nobody else may

    def listen(self, heard: Callable[[Journey], None]) -> None:
        """Where there are no readers, or no number is left, nobody hears of it, and the thread brings it home."""
        if self.flight.grounded:
            return
        try:
            # A copy: a loop must not be left with a number that the store has closed.
            self._ear = os.dup(self.flight.fileno())
            self.loop.add_reader(self._ear, heard, self)
        except Exception:  # noqa: BLE001
            self._close_ear()

    @property
    def is_stranded(self) -> bool:
        """Nobody will bring it home but a thread."""
        return not self.over and (self.flight.grounded or self._ear < 0 or self.loop.is_closed())

    def deafen(self) -> None:
        """On the loop's own thread. Interrupted, it is done when something is heard again, or the journey is forgotten:
        the number must not be free for others while the loop listens to it.
        """
        if self._ear >= 0:
            self.loop.remove_reader(self._ear)
            self._close_ear()

    def deafen_from_afar(self) -> None:
        try:
            self.loop.call_soon_threadsafe(self.deafen)
        except RuntimeError:  # closed, and its selector with it
            self._close_ear()

    def _close_ear(self) -> None:
        ear, self._ear = self._ear, -1
        if ear >= 0:
            os.close(ear)

    def __del__(self) -> None:
        if getattr(self, "_ear", -1) >= 0:  # of a loop that was closed before it could hear
            self._close_ear()


class Flights:
    """Who speaks to the store: a thread that has it to itself, or one flight in the air."""

    def __init__(self, store: Store) -> None:
        # Asked of the class: a stand-in that hands on what it does not know has not said that it can.
        self._start = cast("Starts", store).start if hasattr(type(store), "start") else None
        self.lock = threading.Lock()  # held while anyone speaks to the store; taken before the crew's mutex
        self._journey: Journey | None = None
        self._wanted = 0  # so many threads want or have the store: no loop goes before them
        self._thread_first = False  # what is queued needs the thread
        self._handed_over_at = -math.inf
        self._early = EARLY_MIN

    def is_early(self, queued: int) -> bool:
        """Whether so many are worth sending before the loop has come to the end of its turn."""
        return queued >= self._early and self._start is not None and not self._thread_first and not self.lock.locked()

    def launch(self, crew: Crew, loop: asyncio.AbstractEventLoop) -> None:
        """Send what is queued from this loop, or have the thread do it."""
        if self._start is None or self._thread_first:
            crew.call_thread()
        elif self._wanted:
            return  # who has the store then, or is about to, looks at the queue when that is done
        elif self.lock.locked():
            if not self._comes_home_to(loop):
                crew.call_thread()
        else:
            self._see_off(crew, self._depart(crew, loop))

    def _comes_home_to(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Whether a flight in the air lands here soon: then what is queued follows it."""
        journey = self._journey
        if journey is None or journey.loop is not loop or journey.is_stranded:
            return False
        return time.monotonic() < journey.since + PATROL_SECONDS

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
        is_ours = False
        try:
            is_ours = before is not None or self.lock.acquire(blocking=False)
            with crew.mutex:
                if is_ours and not self._wanted:
                    batch = crew.gather(0 if before is None else len(before.batch))
            if batch and self._start is not None:
                flight = self._start([sent.write for sent in batch])
            if flight is not None:
                journey = Journey(flight, batch, loop, crew)
                journey.listen(self._land)
                self._journey = journey
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
                crew.restore(batch)
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
            journey.deafen()
            self._early = max(EARLY_MIN, len(journey.batch) // 2)
            crew.set_going(journey.loop)

    def _let_next_follow(self, journey: Journey) -> None:
        crew = journey.crew
        if journey.flight.received and not self._thread_first and crew.may_follow(journey.batch):
            following = self._depart(crew, journey.loop, journey)
            if following is not None:
                self._see_off(crew, following)

    def _take_apart_later(self, crew: Crew, batch: list[Sent]) -> None:
        self._thread_first = True
        crew.restore(batch)

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
        if self._start is None or self._thread_first or loop is None:
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


def _told(error: BaseException) -> OncewardError:
    if isinstance(error, OncewardError):
        return error
    if isinstance(error, Exception):
        return StoreUnavailable(f"the store failed unexpectedly: {error!r}")
    return StoreUnavailable("the commit was interrupted")
