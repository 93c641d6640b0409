"""Topics, which messages and attachments belong to."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass

from sqlalchemy import bindparam, insert, select

from onceward.core.json_text import checked, compact
from onceward.errors import NotFound
from onceward.hub.db.append import Appending, EventSteps, NewEvent, marked
from onceward.hub.db.engine import Transaction
from onceward.hub.db.page import LIMIT_MAX, RowPage, page_of, parse_cursor
from onceward.hub.db.request_key import RequestKey
from onceward.hub.db.tables import topics
from onceward.hub.db.timestamps import new_id, now_text
from onceward.hub.events.log import event_of

TITLE_BYTES_MAX = 512
CREATED = "topic.created"


@dataclass(frozen=True, slots=True)
class Topic:
    """A stored topic."""

    id: str
    title: str
    created_at: str


_COLUMNS = (topics.c.id, topics.c.title, topics.c.created_at)
_INSERT = insert(topics)
_ONE = select(*_COLUMNS).where(topics.c.id == bindparam("id"))
_NEWEST = select(*_COLUMNS).order_by(topics.c.id.desc()).limit(bindparam("limit"))
_OLDER = _NEWEST.where(topics.c.id < bindparam("after"))
# The cursor is the id of the last row of a page.
_CURSOR = re.compile(r"top_[0-9a-z]{1,64}", re.ASCII)


@Appending
def create_topic(tx: Transaction, title: str, request: RequestKey | None = None) -> EventSteps[tuple[Topic, int]]:
    """Create a topic; return it and the id of its event. A repeated request gets the topic of its first run.

    Args:
        tx: A write transaction.
        title: The title.
        request: The key of the request, if it has one.

    Returns:
        The topic, and the id of its event.

    Raises:
        errors.InvalidInput: The title cannot be accepted.
        errors.TransactionConflict: Another run of the same request has committed first.
    """
    title = checked("title", title, TITLE_BYTES_MAX)
    done = event_of(tx, request)
    if done is not None:
        return Topic(**json.loads(done.data)["topic"]), done.event_id
    topic = Topic(new_id("top"), title, now_text())
    tx.execute(_INSERT, asdict(topic))
    event = NewEvent(CREATED, topic.id, "topic", topic.id, compact({"topic": asdict(topic)}))
    (event_id,) = yield marked([event], request)
    return topic, event_id


def get_topic(tx: Transaction, topic_id: str) -> Topic:
    """Return a topic. Raises `NotFound` if it does not exist."""
    row = tx.execute(_ONE, {"id": topic_id}).one_or_none()
    if row is None:
        raise no_topic(topic_id)
    return Topic(*row)


def list_topics(tx: Transaction, limit: int, after: str = "") -> RowPage[Topic]:
    """Return a page of topics after the cursor, newest first."""
    limit = min(limit, LIMIT_MAX)
    asked: dict[str, object] = {"limit": limit + 1}
    if after:
        asked["after"] = parse_cursor(after, _CURSOR)[0]
    found = [Topic(*row) for row in tx.execute(_OLDER if after else _NEWEST, asked)]
    return page_of(found, limit, lambda topic: topic.id)


def no_topic(topic_id: str) -> NotFound:
    return NotFound(f"topic {topic_id[:64]!r} does not exist")
