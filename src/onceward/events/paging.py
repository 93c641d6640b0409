"""Pages of the log: what is read at one moment, and where the next page begins."""

from __future__ import annotations

from dataclasses import dataclass

from onceward.db.engine import Database
from onceward.events.log import EVERYTHING, PAGE_MAX, Event, Extent, Filter, extent, page

# How many ids one page of a filtered replay passes over where no index leads to the next match: it bounds the time of
# one look at the log, and a client hears of its progress.
WINDOW = 20_000


@dataclass(frozen=True, slots=True)
class Page:
    """The wanted events behind `after`, up to `end`: there are no others up to there. `after` is the cursor that was
    asked for, or, when that is older than the log, the place right before its oldest event.
    """

    after: int
    end: int
    events: list[Event]
    extent: Extent
    has_more: bool


def read_page(database: Database, after: int, limit: int = PAGE_MAX, wanted: Filter = EVERYTHING) -> Page:
    """One page behind a cursor, from one moment of the log."""
    with database.read() as tx:
        now = extent(tx)
        after = max(after, now.oldest_event_id - 1)
        # One topic is an index, in the order of ids. Several would be collected and sorted anew for each page.
        by_index = wanted.is_all or (len(wanted.topics) == 1 and not wanted.names)
        until = now.last_event_id if by_index else min(now.last_event_id, after + WINDOW)
        events = page(tx, after, until, limit, wanted) if after < until else []
        if len(events) < limit:
            return Page(after, max(after, until), events, now, until < now.last_event_id)
        end = events[-1].event_id
        has_more = end < now.last_event_id
        if has_more and by_index and not wanted.is_all and not page(tx, end, until, 1, wanted):
            return Page(after, until, events, now, has_more=False)
        return Page(after, end, events, now, has_more)


def read_extent(database: Database) -> Extent:
    with database.read() as tx:
        return extent(tx)
