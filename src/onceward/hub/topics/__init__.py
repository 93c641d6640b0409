"""Topics, their messages, and attachments that are added once however often they are sent.

Not here: the event log (`hub/events/`), and the routes (`hub/routes/topics.py`).
Start with `attachment.py`; `identity.py` defines when two attachments are the same.
"""

import onceward.hub.db.engine  # noqa: F401  # first: without the extra, its error says what to install
from onceward.hub.topics.attachment import (
    Attached,
    Attachment,
    attach,
    find_attachment_by_dedupe_key,
    list_attachments,
    update_attachment,
)
from onceward.hub.topics.identity import NewAttachment
from onceward.hub.topics.message import Message, list_messages, post_message
from onceward.hub.topics.topic import Topic, create_topic, get_topic, list_topics

__all__ = [
    "Attached",
    "Attachment",
    "Message",
    "NewAttachment",
    "Topic",
    "attach",
    "attachment",
    "create_topic",
    "find_attachment_by_dedupe_key",
    "get_topic",
    "identity",
    "list_attachments",
    "list_messages",
    "list_topics",
    "message",
    "post_message",
    "topic",
    "update_attachment",
]
