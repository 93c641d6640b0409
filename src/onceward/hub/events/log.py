"""Event log: events in the order of their commits.

Ids are never reused and follow the order of the commits (`db/append.py`). A reader that sees an event therefore sees
every event before it, and can page through `event_id > after`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass

from sqlalchemy import bindparam, select, text

from onceward.core.json_text import written
from onceward.hub.db.append import CHANNEL, NewEvent, append
from onceward.hub.db.engine import Transaction
from onceward.hub.db.request_key import RequestKey
from onceward.hub.db.tables import events

__all__ = [
    "CHANNEL",
    "EVERYTHING",
    "PAGE_MAX",
    "Event",
    "Extent",
    "Filter",
    "NewEvent",
    "append",
    "delete_old_events",
    "event_of",
    "extent",
    "page",
]

# Events per page. A page is read, and sent, in one piece.
PAGE_MAX = 500
# Events that retention deletes in one transaction, during which it holds SQLite's write lock.
RETAIN_BATCH = 2_000


@dataclass(frozen=True)
class Event:
    """An event of the log; `data` is JSON text."""

    event_id: int
    name: str
    topic_id: str | None
    entity_type: str
    entity_id: str
    data: str
    created_at: str

    @functools.cached_property
    def json(self) -> str:
        """The JSON text of the event, the same in every response, made once. The data is inserted as it was stored."""
        return (
            f'{{"event_id":{self.event_id},"name":{written(self.name)},"topic_id":{written(self.topic_id)},'
            f'"entity_type":{written(self.entity_type)},"entity_id":{written(self.entity_id)},'
            f'"data":{self.data},"created_at":{written(self.created_at)}}}'
        )


@dataclass(frozen=True, slots=True)
class Filter:
    """Filter of events by topic and by name. An empty set matches all."""

    topics: frozenset[str] = frozenset()
    names: frozenset[str] = frozenset()

    @property
    def is_all(self) -> bool:
        return not self.topics and not self.names

    def matches(self, name: str, topic_id: str | None) -> bool:
        return (not self.topics or topic_id in self.topics) and (not self.names or name in self.names)


@dataclass(frozen=True, slots=True)
class Extent:
    """Extent of the log: it has every event from the oldest to the last. Another epoch is another log."""

    oldest_event_id: int
    last_event_id: int
    log_epoch: str


_EXTENT = text("""
    SELECT oldest_event_id, log_epoch, (SELECT max(event_id) FROM events) FROM event_log
""")


# Built once for each combination of filters, so that SQLAlchemy finds it in its cache by identity.
_columns = (
    events.c.event_id,
    events.c.name,
    events.c.topic_id,
    events.c.entity_type,
    events.c.entity_id,
    events.c.data,
    events.c.created_at,
)
_PAGE = (
    select(*_columns)
    .where(events.c.event_id > bindparam("after"), events.c.event_id <= bindparam("until"))
    .order_by(events.c.event_id)
    .limit(bindparam("limit"))
)
_OF_TOPICS = events.c.topic_id.in_(bindparam("topics", expanding=True))
_OF_NAMES = events.c.name.in_(bindparam("names", expanding=True))
_PAGES = {
    (False, False): _PAGE,
    (True, False): _PAGE.where(_OF_TOPICS),
    (False, True): _PAGE.where(_OF_NAMES),
    (True, True): _PAGE.where(_OF_TOPICS, _OF_NAMES),
}
EVERYTHING = Filter()


def page(tx: Transaction, after: int, until: int, limit: int, wanted: Filter = EVERYTHING) -> list[Event]:
    """Return the wanted events with after < event_id <= until, at most `limit` of them, in the order of their ids."""
    values: dict[str, object] = {"after": after, "until": until, "limit": min(limit, PAGE_MAX)}
    if wanted.topics:
        values["topics"] = sorted(wanted.topics)
    if wanted.names:
        values["names"] = sorted(wanted.names)
    rows: Iterable[tuple[int, str, str | None, str, str, str, str]] = tx.execute(
        _PAGES[bool(wanted.topics), bool(wanted.names)], values
    )
    return [Event(*row) for row in rows]


def extent(tx: Transaction) -> Extent:
    """Return the current extent of the log."""
    oldest, epoch, last = tx.execute(_EXTENT).one()
    return Extent(oldest, max(last or 0, oldest - 1), epoch)


_OF_REQUEST = select(*_columns).where(events.c.request_key == bindparam("request_key"))


def event_of(tx: Transaction, request: RequestKey | None) -> Event | None:
    """Return the event of an earlier run of this request, or None."""
    if request is None or not request.again:
        return None
    row = tx.execute(_OF_REQUEST, {"request_key": request.digest}).one_or_none()
    return None if row is None else Event(*row)


_FIRST_KEPT = text("SELECT event_id FROM events WHERE created_at >= :before ORDER BY event_id LIMIT 1")
_NTH_OLDEST = text("SELECT event_id FROM events ORDER BY event_id LIMIT 1 OFFSET :count")
_RAISE = text("UPDATE event_log SET oldest_event_id = :oldest WHERE oldest_event_id < :oldest")
_DELETE = text("DELETE FROM events WHERE event_id < :oldest")


def delete_old_events(tx: Transaction, before: str, limit: int = RETAIN_BATCH) -> int:
    """Delete the oldest events that were appended before that time, at most `limit`, and return their number.

    The new `oldest_event_id` is stored, so that a client with an older cursor is notified of the gap.
    """
    first_kept = tx.execute(_FIRST_KEPT, {"before": before}).scalar()
    nth = tx.execute(_NTH_OLDEST, {"count": limit}).scalar()
    ends = [end for end in (first_kept, nth) if end is not None]
    oldest = min(ends) if ends else extent(tx).last_event_id + 1
    if tx.execute(_RAISE, {"oldest": oldest}).rowcount == 0:
        return 0
    return tx.execute(_DELETE, {"oldest": oldest}).rowcount
