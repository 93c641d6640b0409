"""Messages of a topic."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from sqlalchemy import bindparam, select, text

from onceward.db.clock import new_id, now_text
from onceward.db.engine import Transaction
from onceward.db.tables import messages
from onceward.events.log import NewEvent, append
from onceward.topics.text import checked, compact, limited
from onceward.topics.topic import LIST_MAX, get_topic, no_topic

SENDER_BYTES_MAX = 255
CONTENT_BYTES_MAX = 64 * 1024


@dataclass(frozen=True, slots=True)
class Message:
    id: str
    topic_id: str
    sender: str
    content: str
    created_at: str


# One statement both looks for the topic and inserts: nothing can come between.
_INSERT = text("""
    INSERT INTO messages (id, topic_id, sender, content, created_at)
    SELECT CAST(:id AS TEXT), id, CAST(:sender AS TEXT), CAST(:content AS TEXT), CAST(:created_at AS TEXT)
    FROM topics WHERE id = :topic_id
""")
_NEWEST = (
    select(messages.c.id, messages.c.topic_id, messages.c.sender, messages.c.content, messages.c.created_at)
    .where(messages.c.topic_id == bindparam("topic_id"))
    .order_by(messages.c.id.desc())
    .limit(bindparam("limit"))
)


def post_message(tx: Transaction, topic_id: str, sender: str, content: str) -> tuple[Message, int]:
    """A new message, and the id of its event."""
    sender = checked("sender", sender, SENDER_BYTES_MAX)
    content = limited("content", content, CONTENT_BYTES_MAX)
    message = Message(new_id("msg"), topic_id, sender, content, now_text())
    if tx.execute(_INSERT, asdict(message)).rowcount == 0:
        raise no_topic(topic_id)
    data = compact({"message": asdict(message)})
    (event_id,) = append(tx, [NewEvent("topic.message_added", topic_id, "message", message.id, data)])
    return message, event_id


def list_messages(tx: Transaction, topic_id: str, limit: int) -> list[Message]:
    """The newest first."""
    get_topic(tx, topic_id)
    rows = tx.execute(_NEWEST, {"topic_id": topic_id, "limit": min(limit, LIST_MAX)})
    return [Message(*row) for row in rows]
