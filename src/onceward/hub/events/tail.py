"""Tail: the thread of a process that reads new events from the log and hands them to the event loop, in order."""

from __future__ import annotations

import asyncio
import functools
import logging
import threading
from collections.abc import Callable, Sequence

from onceward.core.log_event import log_event
from onceward.errors import StoreUnavailable
from onceward.hub.db.engine import Database
from onceward.hub.events.framing import EncodedEvent
from onceward.hub.events.log import PAGE_MAX, extent, page
from onceward.hub.events.notifications import Notifications

# Older events that are read at the start, for clients that reconnect after a restart.
_WARM_EVENTS = 500
# Pauses after an error of the database. They double, from the first value to the second.
_PAUSE_SECONDS_MIN, _PAUSE_SECONDS_MAX = 0.05, 2.0

# How often to check for a stop while the loop is busy.
_TAKEN_SECONDS = 1.0

_log = logging.getLogger("onceward.events.tail")

Begin = Callable[[int], None]
Arrive = Callable[[Sequence[EncodedEvent]], None]


class Tail:
    """Calls `begin` with an id and then `arrive` with the events that follow it, page by page, on the loop."""

    def __init__(
        self,
        database: Database,
        notifications: Notifications,
        loop: asyncio.AbstractEventLoop,
        begin: Begin,
        arrive: Arrive,
        *,
        poll_seconds: float,
    ) -> None:
        self._poll_seconds = poll_seconds
        # Whether a client waits for events. Written by the loop, read by the thread.
        self.eager = True
        self._database = database
        self._notifications = notifications
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
        self._notifications.notify()
        self._thread.join()

    def _run(self) -> None:
        pause = 0.0
        while not self._stopping.is_set():
            try:
                self._read()
            except Exception as error:  # noqa: BLE001  # without this thread no client gets new events
                if not pause:
                    trace = None if isinstance(error, StoreUnavailable) else error
                    log_event(
                        _log.warning, "event_log_read_failed", trace, reason=str(error), hint="new events arrive late"
                    )
                pause = min(max(_PAUSE_SECONDS_MIN, pause * 2), _PAUSE_SECONDS_MAX)
                self._stopping.wait(pause)
            else:
                if pause:
                    log_event(_log.warning, "event_log_read_recovered")
                pause = 0.0
                self._notifications.wait(self._poll_seconds, eagerly=self.eager)
        self._notifications.close()

    def _read(self) -> None:
        """Read all new events and hand them over."""
        while not self._stopping.is_set():
            with self._database.read() as tx:
                now = extent(tx)
                position = self._position
                if position is None:
                    position = now.last_event_id - _WARM_EVENTS
                # Retention may have deleted events that were not read yet. Each session then finds its own gap.
                position = max(position, now.oldest_event_id - 1)
                # Ids follow the order of commits: if this event is visible, so is every event before it.
                events = page(tx, position, now.last_event_id, PAGE_MAX)
            if position != self._position:
                self._hand_over(functools.partial(self._begin, position))
                self._position = position
            if events:
                self._hand_over(functools.partial(self._arrive, [EncodedEvent(event) for event in events]))
                self._position = events[-1].event_id
            if len(events) < PAGE_MAX:
                return

    def _hand_over(self, call: Callable[[], None]) -> None:
        """Run a call on the loop and wait until it starts, so that a busy loop leaves events in the log."""
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
