"""Topics: what conversations are about."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from sqlalchemy import bindparam, select, text

from onceward.core.text import checked, compact
from onceward.db.clock import new_id, now_text
from onceward.db.engine import Transaction
from onceward.db.request import RequestKey
from onceward.db.tables import topics
from onceward.errors import NotFound, StoreUnavailable
from onceward.events.log import NewEvent, append, event_id_of

TITLE_BYTES_MAX = 512
LIST_MAX = 500
CREATED = "topic.created"


@dataclass(frozen=True, slots=True)
class Topic:
    id: str
    title: str
    created_at: str


_COLUMNS = (topics.c.id, topics.c.title, topics.c.created_at)
_INSERT = text("""
    INSERT INTO topics (id, title, created_at, request_key) VALUES (:id, :title, :created_at, :request_key)
    ON CONFLICT DO NOTHING
""")
_FREE = text("UPDATE topics SET request_key = NULL WHERE request_key = :request_key AND created_at < :kept_since")
_ASKED = select(*_COLUMNS).where(topics.c.request_key == bindparam("request_key"))
_ONE = select(*_COLUMNS).where(topics.c.id == bindparam("id"))
_NEWEST = select(*_COLUMNS).order_by(topics.c.id.desc()).limit(bindparam("limit"))


def create_topic(tx: Transaction, title: str, request: RequestKey | None = None) -> tuple[Topic, int | None]:
    """A new topic, and the id of its event. The same request again finds the topic that its first run made."""
    topic = Topic(new_id("top"), checked("title", title, TITLE_BYTES_MAX), now_text())
    row = {**asdict(topic), "request_key": request and request.digest}
    while tx.execute(_INSERT, row).rowcount == 0:
        if request is None:
            raise StoreUnavailable("the id of the new topic is taken; try again")
        if tx.execute(_FREE, {"request_key": request.digest, "kept_since": request.kept_since}).rowcount == 0:
            there = Topic(*tx.execute(_ASKED, {"request_key": request.digest}).one())
            return there, event_id_of(tx, CREATED, there.id, there.id)
    (event_id,) = append(tx, [NewEvent(CREATED, topic.id, "topic", topic.id, compact({"topic": asdict(topic)}))])
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
