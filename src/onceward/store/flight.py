"""One batch in flight: what a store does for it, and the journey that its loop hears the end of. See `store/flights.py`."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from onceward.core.claim import Answer, Write
from onceward.errors import OncewardError
from onceward.store.queue import Queue, Sent

# So long a loop may take to come for its flight while others want the store, or are aboard.
PATROL_SECONDS = 0.05
# So often the thread looks whether a flight was forgotten by a loop that is gone.
LOOK_SECONDS = 1.0


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


class Packed(Protocol):
    """Writes in the form in which they are sent, ready before the store is free."""

    def add(self, writes: Sequence[Write]) -> None:
        """Behind those that are in it. Raises `BatchFailed` where they cannot be sent, and is of no use then."""
        ...

    def depart(self) -> Flight | None:
        """Begin what `commit` does. None, with nothing sent, where something has to be waited for first.

        Until the flight is received, or else finished, the store is not used otherwise.
        """
        ...


class Packs(Protocol):
    """A store that can send a batch without waiting for its answers."""

    def pack(self) -> Packed: ...


class Crew(Protocol):
    """What the batcher does for flights."""

    mutex: threading.Lock
    queue: Queue  # guarded by the mutex

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
