"""Topics: the newest ones, and one topic with its messages and attachments."""

from __future__ import annotations

from starlette.responses import Response

from onceward.hub.console.visit import Visit
from onceward.hub.db.page import RowPage
from onceward.hub.db_threads import in_thread
from onceward.hub.topics.attachment import Attachment, list_attachments
from onceward.hub.topics.message import Message, list_messages
from onceward.hub.topics.topic import Topic, get_topic, list_topics

_LIMIT = 100


async def show(visit: Visit) -> Response:
    """Show the newest topics."""
    hub, after = visit.hub, visit.query("after")

    def read() -> RowPage[Topic]:
        with hub.database.read() as tx:
            return list_topics(tx, _LIMIT, after)

    page = await in_thread(read)
    return await visit.page("topics.html", topics=page.items, after=page.next_after, is_later=bool(after))


async def show_one(visit: Visit) -> Response:
    """Show one topic with its newest messages and attachments."""
    hub, topic_id = visit.hub, visit.request.path_params["topic_id"]

    def read() -> tuple[Topic, RowPage[Message], RowPage[Attachment]]:
        with hub.database.read() as tx:
            topic = get_topic(tx, topic_id)
            return topic, list_messages(tx, topic_id, _LIMIT), list_attachments(tx, topic_id, limit=_LIMIT)

    topic, messages, attachments = await in_thread(read)
    return await visit.page("topic.html", topic=topic, messages=messages, attachments=attachments)
