"""One thread of each process that reads what is appended to the log and hands it to the event loop, in order."""

from __future__ import annotations

import asyncio
import functools
import logging
import threading
from collections.abc import Callable, Sequence

from onceward.db.engine import Database
from onceward.errors import StoreUnavailable
from onceward.events.hints import Hints
from onceward.events.log import PAGE_MAX, extent, page
from onceward.events.wire import Ready

# How many of the events before its start a process reads: clients that come back after a restart find theirs there.
_WARM_EVENTS = 500
# Pauses after an error of the database: they double from the first to the last.
_PAUSE_SECONDS_MIN, _PAUSE_SECONDS_MAX = 0.05, 2.0

# How often it looks, while the loop is busy, whether anybody still wants what it has.
_TAKEN_SECONDS = 1.0

_log = logging.getLogger(__name__)

Begin = Callable[[int], None]
Arrive = Callable[[Sequence[Ready]], None]


class Tail:
    """Calls, on the loop, `begin` with an id and then `arrive` with events that follow it, page by page."""

    def __init__(
        self,
        database: Database,
        hints: Hints,
        loop: asyncio.AbstractEventLoop,
        begin: Begin,
        arrive: Arrive,
        *,
        look_seconds: float,
    ) -> None:
        self._look_seconds = look_seconds
        # Whether somebody waits for events. Written by the loop, read here.
        self.eager = True
        self._database = database
        self._hints = hints
        self._loop = loop
        self._begin = begin
        self._arrive = arrive
        self._position: int | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="onceward-events", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread and wait for it."""
        self._stopping.set()
        self._hints.ring()
        self._thread.join()

    def _run(self) -> None:
        pause = 0.0
        while not self._stopping.is_set():
            try:
                self._read()
            except Exception as error:  # noqa: BLE001  # without this thread nobody hears of anything again
                if not pause:
                    known = isinstance(error, StoreUnavailable)
                    _log.warning("events are late, the log cannot be read: %s", error, exc_info=not known)
                pause = min(max(_PAUSE_SECONDS_MIN, pause * 2), _PAUSE_SECONDS_MAX)
                self._stopping.wait(pause)
            else:
                if pause:
                    _log.warning("the log can be read again")
                pause = 0.0
                self._hints.wait(self._look_seconds, eagerly=self.eager)
        self._hints.close()

    def _read(self) -> None:
        """Hand over everything that the log has."""
        while not self._stopping.is_set():
            with self._database.read() as tx:
                now = extent(tx)
                position = self._position
                if position is None:
                    position = now.last_event_id - _WARM_EVENTS
                # Retention may have deleted what was not read yet; each session then finds its gap in the log.
                position = max(position, now.oldest_event_id - 1)
                # Ids follow commit order: whoever sees an event sees every event before it.
                events = page(tx, position, now.last_event_id, PAGE_MAX)
            if position != self._position:
                self._hand_over(functools.partial(self._begin, position))
                self._position = position
            if events:
                self._hand_over(functools.partial(self._arrive, [Ready(event) for event in events]))
                self._position = events[-1].event_id
            if len(events) < PAGE_MAX:
                return

    def _hand_over(self, call: Callable[[], None]) -> None:
        """Run something on the loop and wait for it: what the loop has no time for stays in the log."""
        taken = threading.Event()

        def run() -> None:
            taken.set()
            call()

        try:
            self._loop.call_soon_threadsafe(run)
        except RuntimeError:  # the loop is closed, and with it every session
            self._stopping.set()
            return
        while not taken.wait(_TAKEN_SECONDS):
            if self._stopping.is_set():
                return
