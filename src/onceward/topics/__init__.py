"""Topics, their messages, and attachments that are added once however often they are sent."""

import onceward.db.engine  # noqa: F401  # first: without the extra, its error says what to install
from onceward.topics.attachment import (
    Attached,
    Attachment,
    attach,
    find_attachment_by_dedupe_key,
    list_attachments,
    update_attachment,
)
from onceward.topics.identity import NewAttachment
from onceward.topics.message import Message, list_messages, post_message
from onceward.topics.topic import Topic, create_topic, get_topic, list_topics

__all__ = [
    "Attached",
    "Attachment",
    "Message",
    "NewAttachment",
    "Topic",
    "attach",
    "create_topic",
    "find_attachment_by_dedupe_key",
    "get_topic",
    "list_attachments",
    "list_messages",
    "list_topics",
    "post_message",
    "update_attachment",
]
