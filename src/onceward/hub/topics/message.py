"""Messages of a topic."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass

from sqlalchemy import bindparam, select, text

from onceward.core.json_text import checked, compact, limited
from onceward.hub.db.append import Appending, EventSteps, NewEvent, marked
from onceward.hub.db.engine import Transaction
from onceward.hub.db.page import LIMIT_MAX, RowPage, page_of, parse_cursor
from onceward.hub.db.request_key import RequestKey
from onceward.hub.db.tables import messages
from onceward.hub.db.timestamps import new_id, now_text
from onceward.hub.events.log import event_of
from onceward.hub.topics.topic import get_topic, no_topic

SENDER_BYTES_MAX = 255
CONTENT_BYTES_MAX = 64 * 1024
ADDED = "topic.message_added"


@dataclass(frozen=True, slots=True)
class Message:
    """A stored message of a topic."""

    id: str
    topic_id: str
    sender: str
    content: str
    created_at: str


_COLUMNS = (messages.c.id, messages.c.topic_id, messages.c.sender, messages.c.content, messages.c.created_at)
# One statement checks that the topic exists, and inserts: no other transaction can come between.
_INSERT = text("""
    INSERT INTO messages (id, topic_id, sender, content, created_at)
    SELECT CAST(:id AS TEXT), id, CAST(:sender AS TEXT), CAST(:content AS TEXT), CAST(:created_at AS TEXT)
    FROM topics WHERE id = :topic_id
""")
_NEWEST = (
    select(*_COLUMNS)
    .where(messages.c.topic_id == bindparam("topic_id"))
    .order_by(messages.c.id.desc())
    .limit(bindparam("limit"))
)
_OLDER = _NEWEST.where(messages.c.id < bindparam("after"))
# The cursor is the id of the last row of a page.
_CURSOR = re.compile(r"msg_[0-9a-z]{1,64}", re.ASCII)


@Appending
def post_message(
    tx: Transaction, topic_id: str, sender: str, content: str, request: RequestKey | None = None
) -> EventSteps[tuple[Message, int]]:
    """Add a message; return it and the id of its event. A repeated request gets the message of its first run.

    Args:
        tx: A write transaction.
        topic_id: The topic.
        sender: The sender.
        content: The text.
        request: The key of the request, if it has one.

    Returns:
        The message, and the id of its event.

    Raises:
        errors.InvalidInput: The sender or the content cannot be accepted.
        errors.TooLarge: The content is too large.
        errors.NotFound: The topic does not exist.
        errors.TransactionConflict: Another run of the same request has committed first.
    """
    sender = checked("sender", sender, SENDER_BYTES_MAX)
    content = limited("content", content, CONTENT_BYTES_MAX)
    done = event_of(tx, request)
    if done is not None:
        return Message(**json.loads(done.data)["message"]), done.event_id
    message = Message(new_id("msg"), topic_id, sender, content, now_text())
    if tx.execute(_INSERT, asdict(message)).rowcount == 0:
        raise no_topic(topic_id)
    data = compact({"message": asdict(message)})
    (event_id,) = yield marked([NewEvent(ADDED, topic_id, "message", message.id, data)], request)
    return message, event_id


def list_messages(tx: Transaction, topic_id: str, limit: int, after: str = "") -> RowPage[Message]:
    """Return a page of messages after the cursor, newest first. Raises `NotFound` if the topic does not exist."""
    get_topic(tx, topic_id)
    limit = min(limit, LIMIT_MAX)
    asked: dict[str, object] = {"topic_id": topic_id, "limit": limit + 1}
    if after:
        asked["after"] = parse_cursor(after, _CURSOR)[0]
    found = [Message(*row) for row in tx.execute(_OLDER if after else _NEWEST, asked)]
    return page_of(found, limit, lambda message: message.id)
