"""Batches in flight: sent by an event loop itself, which goes on with other work until the answers are there.

The store's thread needs the interpreter's lock to pack a batch and to read its answers, just while a loop computes: so
server and callers would work by turns. A store that can `start` a batch lets the loop send it in the middle of its
work and hear of the answers from its selector. Half of the callers compute while the server works for the other half.

The thread remains for all that has to wait (connecting, sending again, reading, purging), and it brings home a flight
whose loop does not: a loop that is busy, or was closed, must not keep others from the store.
"""

from __future__ import annotations

import asyncio
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

# So long a loop may take to come for its flight while others want the store.
PATROL_SECONDS = 0.05
# Fewer are not worth a batch of their own in the middle of a loop's turn.
EARLY_MIN = 8


class Flight(Protocol):
    """A batch that was sent. One thread at a time has to do with it."""

    @property
    def grounded(self) -> bool:
        """Whether `finish` has to wait for more than the answers: not on a loop."""
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


class Starts(Protocol):
    """A store that can send a batch without waiting for its answers."""

    def start(self, writes: Sequence[Write]) -> Flight | None:
        """Begin what `commit` does. None, with nothing sent, where something has to be waited for first.

        Until the flight is finished the store is not used otherwise.
        """
        ...


class Crew(Protocol):
    """What the batcher does for flights."""

    mutex: threading.Lock

    def gather(self) -> list[Sent]:
        """The next batch, out of the queue. The caller holds the mutex."""
        ...

    def restore(self, batch: list[Sent]) -> None:
        """Put back what was gathered."""
        ...

    def bring(self, batch: list[Sent], ask: Callable[[], list[Answer]], apart: Callable[[list[Sent]], None]) -> None:
        """Ask for the answers of a batch and hand them out; one that fails because of its data is taken `apart`."""
        ...

    def halve(self, batch: list[Sent]) -> None:
        """Commit a batch in two, waiting for it."""
        ...

    def fail(self, batch: list[Sent], error: OncewardError) -> None:
        """Tell everyone aboard."""
        ...

    def set_going(self, loop: asyncio.AbstractEventLoop) -> None:
        """Get what is queued on its way."""
        ...

    def call_thread(self) -> None:
        """Wake the store's thread."""
        ...


class Journey:
    """A flight, the writes aboard, and the loop that hears of its landing."""

    __slots__ = ("_ear", "batch", "flight", "lock", "loop", "over", "since")

    def __init__(self, flight: Flight, batch: list[Sent], loop: asyncio.AbstractEventLoop) -> None:
        self.flight = flight
        self.batch = batch
        self.loop = loop
        self.since = time.monotonic()
        self.lock = threading.Lock()  # held while what has come is taken in, and while `over` is decided
        self.over = False
        self._ear = -1

    def listen(self, heard: Callable[[Journey], None]) -> None:
        """Have the loop call back. Its ear is a copy: a loop must not be left with a number that the store has closed."""
        self._ear = os.dup(self.flight.fileno())
        self.loop.add_reader(self._ear, heard, self)

    def deafen(self) -> None:
        """On the loop's own thread."""
        ear, self._ear = self._ear, -1
        if ear >= 0:
            self.loop.remove_reader(ear)
            os.close(ear)

    def deafen_from_afar(self) -> None:
        try:
            self.loop.call_soon_threadsafe(self.deafen)
        except RuntimeError:  # closed, and its selector with it
            ear, self._ear = self._ear, -1
            if ear >= 0:
                os.close(ear)

    @property
    def is_stranded(self) -> bool:
        """Nobody will bring it home but a thread."""
        return self.flight.grounded or self._ear < 0 or self.loop.is_closed()


class Flights:
    """Who speaks to the store: a thread that has it to itself, or one flight in the air."""

    def __init__(self, store: Store, crew: Crew) -> None:
        # Asked of the class: a stand-in that hands on what it does not know has not said that it can.
        self._start = cast("Starts", store).start if hasattr(type(store), "start") else None
        self._crew = crew
        self.lock = threading.Lock()  # held while anyone speaks to the store; taken before the crew's mutex
        self._journey: Journey | None = None
        self._wanted = 0  # so many threads want the store: no loop goes before them
        self._thread_first = False  # what is queued needs the thread
        self._early = EARLY_MIN

    def is_early(self, queued: int) -> bool:
        """Whether so many are worth sending before the loop has come to the end of its turn."""
        return queued >= self._early and self._start is not None and not self.lock.locked()

    def launch(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Send what is queued from this loop. False when the thread is needed for it."""
        if self._start is None or self._thread_first:
            return False
        if not self.lock.acquire(blocking=False):
            journey = self._journey
            if journey is None or journey.loop is not loop or journey.is_stranded:
                return False
            return time.monotonic() - journey.since < PATROL_SECONDS
        batch: list[Sent] = []
        flight: Flight | None = None
        try:
            with self._crew.mutex:
                if not self._wanted:
                    batch = self._crew.gather()
            if batch:
                flight = self._start([sent.write for sent in batch])
        except BatchFailed:
            flight = None  # the thread finds out whose fault it is
        except OncewardError as error:
            self._crew.fail(batch, error)
            batch = []
        except BaseException as error:
            self._crew.fail(batch, StoreUnavailable(f"the store failed unexpectedly: {error!r}"))
            batch = []
            if not isinstance(error, Exception):  # an interrupt goes on to the loop
                raise
        finally:
            if flight is None:
                self._thread_first = bool(batch)
                self._crew.restore(batch)
                self.lock.release()
        if flight is None:
            return False
        self._journey = journey = Journey(flight, batch, loop)
        if not flight.grounded:
            try:
                journey.listen(self._land)
            except (RuntimeError, OSError):  # a loop without readers, or no number left
                return False
        return not flight.grounded

    def _land(self, journey: Journey) -> None:
        """On the loop: something has come."""
        if not journey.lock.acquire(blocking=False):  # a thread is bringing it home
            journey.deafen()
            return
        try:
            if not journey.over and not journey.flight.poll():
                return
            is_ours = not journey.over and not journey.flight.grounded
            journey.over = journey.over or is_ours
        finally:
            journey.lock.release()
        journey.deafen()
        if not is_ours:
            self._crew.call_thread()
            return
        try:
            self._crew.bring(journey.batch, journey.flight.finish, self._take_apart_later)
        finally:
            self._early = max(EARLY_MIN, len(journey.batch) // 2)
            self._journey = None
            self.lock.release()
        self._crew.set_going(journey.loop)

    def _take_apart_later(self, batch: list[Sent]) -> None:
        self._thread_first = True
        self._crew.restore(batch)

    @contextmanager
    def store_to_oneself(self) -> Iterator[None]:
        """Wait for the store, on a thread. A flight in the air lands first, by its loop or else from here."""
        with self._crew.mutex:
            self._wanted += 1
        try:
            while not self._take():
                pass
        finally:
            with self._crew.mutex:
                self._wanted -= 1
                self._thread_first = False
        try:
            yield
        finally:
            self.lock.release()

    def _take(self) -> bool:
        journey = self._journey
        if journey is None or not journey.is_stranded:
            if self.lock.acquire(timeout=PATROL_SECONDS):
                return True
            journey = self._journey
        return journey is not None and self._bring_home(journey)

    def _bring_home(self, journey: Journey) -> bool:
        """False when its loop was faster. Otherwise the store is now ours: the flight had it."""
        with journey.lock:
            if journey.over:
                return False
            journey.over = True
        journey.deafen_from_afar()
        try:
            self._crew.bring(journey.batch, journey.flight.finish, self._crew.halve)
        except BaseException:
            self._crew.fail(journey.batch, StoreUnavailable("the commit was interrupted"))
            self._journey = None
            self.lock.release()
            raise
        self._journey = None
        return True
