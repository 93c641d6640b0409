"""Messages of a topic."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from sqlalchemy import bindparam, select, text

from onceward.core.text import checked, compact, limited
from onceward.db.clock import new_id, now_text
from onceward.db.engine import Transaction
from onceward.db.request import RequestKey
from onceward.db.tables import messages
from onceward.events.log import NewEvent, append, event_id_of
from onceward.topics.topic import LIST_MAX, get_topic, no_topic

SENDER_BYTES_MAX = 255
CONTENT_BYTES_MAX = 64 * 1024
ADDED = "topic.message_added"


@dataclass(frozen=True, slots=True)
class Message:
    id: str
    topic_id: str
    sender: str
    content: str
    created_at: str


_COLUMNS = (messages.c.id, messages.c.topic_id, messages.c.sender, messages.c.content, messages.c.created_at)
# One statement both looks for the topic and inserts: nothing can come between.
_INSERT = text("""
    INSERT INTO messages (id, topic_id, sender, content, created_at, request_key)
    SELECT CAST(:id AS TEXT), id, CAST(:sender AS TEXT), CAST(:content AS TEXT), CAST(:created_at AS TEXT),
           CAST(:request_key AS TEXT)
    FROM topics WHERE id = :topic_id
    ON CONFLICT DO NOTHING
""")
_FREE = text("UPDATE messages SET request_key = NULL WHERE request_key = :request_key AND created_at < :kept_since")
_ASKED = select(*_COLUMNS).where(messages.c.request_key == bindparam("request_key"))
_NEWEST = (
    select(*_COLUMNS)
    .where(messages.c.topic_id == bindparam("topic_id"))
    .order_by(messages.c.id.desc())
    .limit(bindparam("limit"))
)


def post_message(
    tx: Transaction, topic_id: str, sender: str, content: str, request: RequestKey | None = None
) -> tuple[Message, int | None]:
    """A new message, and the id of its event. The same request again finds the message that its first run made."""
    sender = checked("sender", sender, SENDER_BYTES_MAX)
    content = limited("content", content, CONTENT_BYTES_MAX)
    message = Message(new_id("msg"), topic_id, sender, content, now_text())
    row = {**asdict(message), "request_key": request and request.digest}
    while tx.execute(_INSERT, row).rowcount == 0:
        there = None if request is None else tx.execute(_ASKED, {"request_key": request.digest}).one_or_none()
        if request is None or there is None:
            raise no_topic(topic_id)
        if tx.execute(_FREE, {"request_key": request.digest, "kept_since": request.kept_since}).rowcount == 0:
            found = Message(*there)
            return found, event_id_of(tx, ADDED, found.topic_id, found.id)
    data = compact({"message": asdict(message)})
    (event_id,) = append(tx, [NewEvent(ADDED, topic_id, "message", message.id, data)])
    return message, event_id


def list_messages(tx: Transaction, topic_id: str, limit: int) -> list[Message]:
    """The newest first."""
    get_topic(tx, topic_id)
    rows = tx.execute(_NEWEST, {"topic_id": topic_id, "limit": min(limit, LIST_MAX)})
    return [Message(*row) for row in rows]
