"""Topics: what conversations are about."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from sqlalchemy import bindparam, insert, select

from onceward.db.clock import new_id, now_text
from onceward.db.engine import Transaction
from onceward.db.tables import topics
from onceward.errors import NotFound
from onceward.events.log import NewEvent, append
from onceward.topics.text import checked, compact

TITLE_BYTES_MAX = 512
LIST_MAX = 500


@dataclass(frozen=True, slots=True)
class Topic:
    id: str
    title: str
    created_at: str


_INSERT = insert(topics)
_ONE = select(topics.c.id, topics.c.title, topics.c.created_at).where(topics.c.id == bindparam("id"))
_NEWEST = (
    select(topics.c.id, topics.c.title, topics.c.created_at).order_by(topics.c.id.desc()).limit(bindparam("limit"))
)


def create_topic(tx: Transaction, title: str) -> tuple[Topic, int]:
    """A new topic, and the id of its event."""
    topic = Topic(new_id("top"), checked("title", title, TITLE_BYTES_MAX), now_text())
    tx.execute(_INSERT, asdict(topic))
    (event_id,) = append(
        tx, [NewEvent("topic.created", topic.id, "topic", topic.id, compact({"topic": asdict(topic)}))]
    )
    return topic, event_id


def get_topic(tx: Transaction, topic_id: str) -> Topic:
    row = tx.execute(_ONE, {"id": topic_id}).one_or_none()
    if row is None:
        raise no_topic(topic_id)
    return Topic(*row)


def list_topics(tx: Transaction, limit: int) -> list[Topic]:
    """The newest first."""
    return [Topic(*row) for row in tx.execute(_NEWEST, {"limit": min(limit, LIST_MAX)})]


def no_topic(topic_id: str) -> NotFound:
    return NotFound(f"there is no topic {topic_id[:64]!r}")
