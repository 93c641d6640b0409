"""Ring: the newest events of the log in memory, ready to be sent. Clients that are up to date read only from here.

Bounded in number and bytes. A client whose cursor is older reads the database, so a slow client costs nothing here.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from onceward.hub.events.framing import EncodedEvent, Framing
from onceward.hub.events.log import Filter

EVENTS_MAX = 4_096
BYTES_MAX = 8 * 1024 * 1024
# The size of one write to a connection: as much as its buffer takes before the writer has to wait.
WRITE_BYTES_MAX = 64 * 1024
# Joined spans to cache. Clients that are up to date have very few different cursors.
_JOINED_MAX = 16


@dataclass(frozen=True, slots=True)
class Span:
    """The bytes of the wanted events up to `end`.

    Attributes:
        data: The bytes.
        end: The last id that this span covers.
        sent: The id of the last wanted event, 0 if there is none.
        whole: Whether the ring has nothing after `end`.
    """

    data: bytes
    end: int
    sent: int
    whole: bool


class Ring:
    """The newest events. Used by one thread. Until `begin`, every cursor is unknown and `after` returns None."""

    def __init__(self, events_max: int = EVENTS_MAX, bytes_max: int = BYTES_MAX) -> None:
        self._events_max = events_max
        self._bytes_max = bytes_max
        self._bytes = 0
        self._events: list[EncodedEvent] = []
        self._ids: list[int] = []
        # The ring has every event after `_floor`, up to `_end`.
        self._floor: int | None = None
        self._end = 0
        self._joined: dict[tuple[int, Framing], Span] = {}

    def begin(self, after: int) -> None:
        """Empty the ring. The next events follow this id."""
        self._events.clear()
        self._ids.clear()
        self._joined.clear()
        self._bytes = 0
        self._floor = self._end = after

    def extend(self, events: Sequence[EncodedEvent]) -> None:
        """Append the events that follow the last one."""
        self._events += events
        self._ids += [encoded.event_id for encoded in events]
        self._bytes += sum(len(encoded.frame) for encoded in events)
        self._end = self._ids[-1]
        if len(self._ids) > self._events_max or self._bytes > self._bytes_max:
            self._forget()

    def _forget(self) -> None:
        # Drop a quarter at a time, because deleting from a list moves the rest. The newest event always stays.
        events_kept, bytes_kept = self._events_max * 3 // 4, self._bytes_max * 3 // 4
        gone = max(0, len(self._ids) - events_kept)
        self._bytes -= sum(len(encoded.frame) for encoded in self._events[:gone])
        while self._bytes > bytes_kept and gone < len(self._ids) - 1:
            self._bytes -= len(self._events[gone].frame)
            gone += 1
        self._floor = self._ids[gone - 1]
        del self._events[:gone], self._ids[:gone]
        self._joined.clear()

    def after(self, cursor: int, framing: Framing, wanted: Filter) -> Span | None:
        """Return the events after a cursor, as many as one write takes; None if the database has to be read."""
        if self._floor is None or cursor < self._floor:
            return None
        if cursor >= self._end:
            return Span(b"", cursor, 0, whole=True)
        if not wanted.is_all:
            return self._join(cursor, framing, wanted)
        span = self._joined.get((cursor, framing))
        if span is None:
            if len(self._joined) >= _JOINED_MAX:
                self._joined.clear()
            span = self._joined[cursor, framing] = self._join(cursor, framing, wanted)
        return span

    def _join(self, cursor: int, framing: Framing, wanted: Filter) -> Span:
        first = bisect_right(self._ids, cursor)
        chosen: list[bytes] = []
        size = sent = 0
        end = cursor
        for encoded in self._events[first:]:
            if not wanted.is_all and not wanted.matches(encoded.name, encoded.topic_id):
                end = encoded.event_id
                continue
            data = framing.event(encoded)
            if chosen and size + len(data) > WRITE_BYTES_MAX:
                return Span(b"".join(chosen), end, sent, whole=False)
            chosen.append(data)
            size += len(data)
            end = sent = encoded.event_id
        return Span(b"".join(chosen), self._end, sent, whole=True)
