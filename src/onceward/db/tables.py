"""Every table of the hub's database, as the migrations make them (a test compares the two)."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    ForeignKey,
    ForeignKeyConstraint,
    Identity,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    func,
)

metadata = MetaData()

# SQLite gives out ids by itself only in a column declared as INTEGER.
_big = BigInteger().with_variant(Integer, "sqlite")

topics = Table(
    "topics",
    metadata,
    Column("id", Text, primary_key=True),
    Column("title", Text, nullable=False),
    Column("created_at", Text, nullable=False),
    Column("request_key", Text, unique=True),
)

messages = Table(
    "messages",
    metadata,
    Column("id", Text, primary_key=True),
    Column("topic_id", Text, ForeignKey("topics.id", ondelete="CASCADE"), nullable=False),
    Column("sender", Text, nullable=False),
    Column("content", Text, nullable=False),
    Column("created_at", Text, nullable=False),
    Column("request_key", Text, unique=True),
    # An attachment names its message together with the topic of both.
    UniqueConstraint("topic_id", "id", name="messages_topic"),
)

topic_attachments = Table(
    "topic_attachments",
    metadata,
    Column("id", Text, primary_key=True),
    Column("topic_id", Text, ForeignKey("topics.id", ondelete="CASCADE"), nullable=False),
    Column("kind", Text, nullable=False),
    Column("key", Text),
    Column("value_json", Text, nullable=False),
    Column("dedupe_key", Text, nullable=False),
    Column("source_message_id", Text),
    Column("created_at", Text, nullable=False),
    ForeignKeyConstraint(["topic_id", "source_message_id"], ["messages.topic_id", "messages.id"]),
    CheckConstraint("length(kind) > 0", name="topic_attachments_kind"),
    CheckConstraint("length(dedupe_key) > 0", name="topic_attachments_dedupe_key"),
)
# What an attachment is: no key and the empty key are the same.
Index(
    "idx_topic_attachments_dedupe",
    topic_attachments.c.topic_id,
    topic_attachments.c.kind,
    func.coalesce(topic_attachments.c.key, ""),
    topic_attachments.c.dedupe_key,
    unique=True,
)
Index("idx_topic_attachments_newest", topic_attachments.c.topic_id, topic_attachments.c.id)

events = Table(
    "events",
    metadata,
    Column("event_id", _big, Identity(always=True), primary_key=True),
    Column("name", Text, nullable=False),
    Column("topic_id", Text),
    Column("entity_type", Text, nullable=False),
    Column("entity_id", Text, nullable=False),
    Column("data", Text, nullable=False),
    Column("created_at", Text, nullable=False),
    sqlite_autoincrement=True,
)
Index("idx_events_topic", events.c.topic_id, events.c.event_id)

# One row: which log this is, and the oldest event that it still promises to have.
event_log = Table(
    "event_log",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("log_epoch", Text, nullable=False),
    Column("oldest_event_id", BigInteger, nullable=False),
    CheckConstraint("id = 1", name="event_log_one_row"),
)

tokens = Table(
    "tokens",
    metadata,
    Column("token_id", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("digest", Text, nullable=False),
    Column("scopes", Text, nullable=False),
    Column("created_at", Text, nullable=False),
    Column("revoked_at", Text),
)
