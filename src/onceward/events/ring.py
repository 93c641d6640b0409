"""The newest events of the log in memory, ready to be sent: what clients at the live edge read instead of the database.

Bounded in number and bytes. A client whose cursor has fallen out of it reads the log again, so that a slow client costs
nothing here.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from onceward.events.log import Filter
from onceward.events.wire import Ready, Wire

EVENTS_MAX = 4_096
BYTES_MAX = 8 * 1024 * 1024
# What one write hands to a connection: as much as its buffer takes before it says to wait.
WRITE_BYTES_MAX = 64 * 1024
# Clients at the live edge stand at very few different cursors.
_JOINED_MAX = 16


@dataclass(frozen=True, slots=True)
class Span:
    """The bytes of the wanted events up to `end`. `sent` is the last of them, 0 if there is none; `whole` says that
    nothing is left behind `end`.
    """

    data: bytes
    end: int
    sent: int
    whole: bool


class Ring:
    """Used by one thread. Until `begin` it has nothing, and says so."""

    def __init__(self, events_max: int = EVENTS_MAX, bytes_max: int = BYTES_MAX) -> None:
        self._events_max = events_max
        self._bytes_max = bytes_max
        self._bytes = 0
        self._events: list[Ready] = []
        self._ids: list[int] = []
        # Every event behind `_floor`, up to `_end`, is here.
        self._floor: int | None = None
        self._end = 0
        self._joined: dict[tuple[int, Wire], Span] = {}

    def begin(self, after: int) -> None:
        """What comes next follows this id, whatever was here before."""
        self._events.clear()
        self._ids.clear()
        self._joined.clear()
        self._bytes = 0
        self._floor = self._end = after

    def extend(self, events: Sequence[Ready]) -> None:
        """Take the events that follow the last one."""
        self._events += events
        self._ids += [ready.event_id for ready in events]
        self._bytes += sum(len(ready.frame) for ready in events)
        self._end = self._ids[-1]
        if len(self._ids) > self._events_max or self._bytes > self._bytes_max:
            self._forget()

    def _forget(self) -> None:
        # A quarter at a time, because a list is moved as a whole; the newest event always stays.
        events_kept, bytes_kept = self._events_max * 3 // 4, self._bytes_max * 3 // 4
        gone = max(0, len(self._ids) - events_kept)
        self._bytes -= sum(len(ready.frame) for ready in self._events[:gone])
        while self._bytes > bytes_kept and gone < len(self._ids) - 1:
            self._bytes -= len(self._events[gone].frame)
            gone += 1
        self._floor = self._ids[gone - 1]
        del self._events[:gone], self._ids[:gone]
        self._joined.clear()

    def after(self, cursor: int, wire: Wire, wanted: Filter) -> Span | None:
        """What follows a cursor, as much as one write takes; None when the log has to be asked."""
        if self._floor is None or cursor < self._floor:
            return None
        if cursor >= self._end:
            return Span(b"", cursor, 0, whole=True)
        if not wanted.is_all:
            return self._join(cursor, wire, wanted)
        span = self._joined.get((cursor, wire))
        if span is None:
            if len(self._joined) >= _JOINED_MAX:
                self._joined.clear()
            span = self._joined[cursor, wire] = self._join(cursor, wire, wanted)
        return span

    def _join(self, cursor: int, wire: Wire, wanted: Filter) -> Span:
        first = bisect_right(self._ids, cursor)
        chosen: list[bytes] = []
        size = sent = 0
        end = cursor
        for ready in self._events[first:]:
            if not wanted.is_all and not wanted.matches(ready.name, ready.topic_id):
                end = ready.event_id
                continue
            data = wire.event(ready)
            if chosen and size + len(data) > WRITE_BYTES_MAX:
                return Span(b"".join(chosen), end, sent, whole=False)
            chosen.append(data)
            size += len(data)
            end = sent = ready.event_id
        return Span(b"".join(chosen), self._end, sent, whole=True)
