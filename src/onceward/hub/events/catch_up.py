"""Catch-up: pages of the log, encoded in a worker thread for one client that is behind."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from onceward.hub.db.engine import Database
from onceward.hub.events.framing import EncodedEvent, Framing
from onceward.hub.events.log import PAGE_MAX, Event, Filter
from onceward.hub.events.paging import read_page
from onceward.hub.events.ring import WRITE_BYTES_MAX

# A page stays in memory until a slow client has taken it, and there may be many slow clients. So a page has about this
# size, however large the events are. The first page has few events, because their size is not known yet.
PAGE_BYTES = 256 * 1024
FIRST_EVENTS = 32


@dataclass(frozen=True, slots=True)
class CatchUpPage:
    """The wanted events after `after`, up to `end`, ready to be sent.

    Attributes:
        after: The requested cursor, or a later one if the log begins later.
        end: The last id that this page covers.
        oldest_event_id: The oldest event of the log.
        writes: The bytes of each write, and the id of its last event.
        next_limit: The number of events that the next page should have.
    """

    after: int
    end: int
    oldest_event_id: int
    writes: deque[tuple[bytes, int]]
    next_limit: int


def read_catch_up(database: Database, after: int, limit: int, wanted: Filter, framing: Framing) -> CatchUpPage:
    """Read one page of the log and encode it."""
    page = read_page(database, after, limit, wanted)
    writes = deque(_joined(page.events, framing))
    size = sum(len(data) for data, _ in writes)
    next_limit = limit
    if page.events:
        next_limit = max(1, min(PAGE_MAX, PAGE_BYTES * len(page.events) // size))
    return CatchUpPage(page.after, page.end, page.extent.oldest_event_id, writes, next_limit)


def _joined(events: Iterable[Event], framing: Framing) -> Iterable[tuple[bytes, int]]:
    chosen: list[bytes] = []
    size = last = 0
    for event in events:
        data = framing.event(EncodedEvent(event))
        if chosen and size + len(data) > WRITE_BYTES_MAX:
            yield b"".join(chosen), last
            chosen, size = [], 0
        chosen.append(data)
        size += len(data)
        last = event.event_id
    if chosen:
        yield b"".join(chosen), last
