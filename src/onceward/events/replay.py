"""A page of the log as it is sent to one client that is behind: made in a worker thread, held only while it is sent."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from onceward.db.engine import Database
from onceward.events.log import PAGE_MAX, Event, Filter
from onceward.events.paging import read_page
from onceward.events.ring import WRITE_BYTES_MAX
from onceward.events.wire import Ready, Wire

# A slow client holds one page for as long as it takes to send it, and there may be many. So pages have about this size,
# however large the events are; the first one is cautious, because it does not know.
PAGE_BYTES = 256 * 1024
FIRST_EVENTS = 32


@dataclass(frozen=True, slots=True)
class Replay:
    """The wanted events behind `after` up to `end`, joined as far as one write takes them, each with the id of its last.
    `after` is behind the cursor that was asked for when the log begins only there.
    """

    after: int
    end: int
    oldest_event_id: int
    writes: deque[tuple[bytes, int]]
    next_limit: int


def read_replay(database: Database, after: int, limit: int, wanted: Filter, wire: Wire) -> Replay:
    page = read_page(database, after, limit, wanted)
    writes = deque(_joined(page.events, wire))
    size = sum(len(data) for data, _ in writes)
    next_limit = limit
    if page.events:
        next_limit = max(1, min(PAGE_MAX, PAGE_BYTES * len(page.events) // size))
    return Replay(page.after, page.end, page.extent.oldest_event_id, writes, next_limit)


def _joined(events: Iterable[Event], wire: Wire) -> Iterable[tuple[bytes, int]]:
    chosen: list[bytes] = []
    size = last = 0
    for event in events:
        data = wire.event(Ready(event))
        if chosen and size + len(data) > WRITE_BYTES_MAX:
            yield b"".join(chosen), last
            chosen, size = [], 0
        chosen.append(data)
        size += len(data)
        last = event.event_id
    if chosen:
        yield b"".join(chosen), last
