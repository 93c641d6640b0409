"""Pages of the log: one consistent read, and the position at which the next page begins."""

from __future__ import annotations

from dataclasses import dataclass

from onceward.hub.db.engine import Database
from onceward.hub.events.log import EVERYTHING, PAGE_MAX, Event, Extent, Filter, extent, page

# The number of ids that one filtered page covers if no index leads to the next match. It limits the time of one read,
# and lets the client advance its cursor even if nothing matches.
WINDOW = 20_000


@dataclass(frozen=True, slots=True)
class LogPage:
    """A page of the wanted events. It has all of them from `after` to `end`.

    Attributes:
        after: The requested cursor, or the position right before the oldest event if the cursor is older.
        end: The last id that the page covers.
        events: The wanted events.
        extent: The extent of the log at the time of the read.
        has_more: Whether another page may have events.
    """

    after: int
    end: int
    events: list[Event]
    extent: Extent
    has_more: bool


def read_page(database: Database, after: int, limit: int = PAGE_MAX, wanted: Filter = EVERYTHING) -> LogPage:
    """Read one page after a cursor, in one transaction."""
    with database.read() as tx:
        now = extent(tx)
        after = max(after, now.oldest_event_id - 1)
        # The index on the topic is in the order of ids. With several topics, each page would collect and sort again.
        by_index = wanted.is_all or (len(wanted.topics) == 1 and not wanted.names)
        until = now.last_event_id if by_index else min(now.last_event_id, after + WINDOW)
        events = page(tx, after, until, limit, wanted) if after < until else []
        if len(events) < limit:
            return LogPage(after, max(after, until), events, now, until < now.last_event_id)
        end = events[-1].event_id
        has_more = end < now.last_event_id
        if has_more and by_index and not wanted.is_all and not page(tx, end, until, 1, wanted):
            return LogPage(after, until, events, now, has_more=False)
        return LogPage(after, end, events, now, has_more)


def read_extent(database: Database) -> Extent:
    with database.read() as tx:
        return extent(tx)
