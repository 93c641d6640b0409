"""Topics: what conversations are about."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass

from sqlalchemy import bindparam, insert, select

from onceward.core.text import checked, compact
from onceward.db.clock import new_id, now_text
from onceward.db.engine import Transaction
from onceward.db.page import LIMIT_MAX, Page, page_of, place_in
from onceward.db.request import RequestKey
from onceward.db.tables import topics
from onceward.errors import NotFound
from onceward.events.log import NewEvent, append, event_of

TITLE_BYTES_MAX = 512
CREATED = "topic.created"


@dataclass(frozen=True, slots=True)
class Topic:
    id: str
    title: str
    created_at: str


_COLUMNS = (topics.c.id, topics.c.title, topics.c.created_at)
_INSERT = insert(topics)
_ONE = select(*_COLUMNS).where(topics.c.id == bindparam("id"))
_NEWEST = select(*_COLUMNS).order_by(topics.c.id.desc()).limit(bindparam("limit"))
_OLDER = _NEWEST.where(topics.c.id < bindparam("after"))
# The id of the last row of a page is the cursor.
_CURSOR = re.compile(r"top_[0-9a-z]{1,64}", re.ASCII)


def create_topic(tx: Transaction, title: str, request: RequestKey | None = None) -> tuple[Topic, int]:
    """A new topic, and the id of its event. The same request again finds the topic that its first run made."""
    title = checked("title", title, TITLE_BYTES_MAX)
    done = event_of(tx, request)
    if done is not None:
        return Topic(**json.loads(done.data)["topic"]), done.event_id
    topic = Topic(new_id("top"), title, now_text())
    tx.execute(_INSERT, asdict(topic))
    event = NewEvent(CREATED, topic.id, "topic", topic.id, compact({"topic": asdict(topic)}))
    (event_id,) = append(tx, [event], request)
    return topic, event_id


def get_topic(tx: Transaction, topic_id: str) -> Topic:
    row = tx.execute(_ONE, {"id": topic_id}).one_or_none()
    if row is None:
        raise no_topic(topic_id)
    return Topic(*row)


def list_topics(tx: Transaction, limit: int, after: str = "") -> Page[Topic]:
    """A page behind the cursor, the newest first."""
    limit = min(limit, LIMIT_MAX)
    asked: dict[str, object] = {"limit": limit + 1}
    if after:
        asked["after"] = place_in(after, _CURSOR)[0]
    found = [Topic(*row) for row in tx.execute(_OLDER if after else _NEWEST, asked)]
    return page_of(found, limit, lambda topic: topic.id)


def no_topic(topic_id: str) -> NotFound:
    return NotFound(f"there is no topic {topic_id[:64]!r}")
