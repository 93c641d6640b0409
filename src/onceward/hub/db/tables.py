"""Tables of the hub's database, as the migrations create them (a test compares the two)."""

from __future__ import annotations

import functools

from sqlalchemy import (
    BigInteger,
    Boolean,
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
    Uuid,
    func,
    text,
    true,
)

from onceward.hub.db.turn_tables import turn_tables

metadata = MetaData()

# SQLite generates ids only for a column declared as INTEGER.
_big = BigInteger().with_variant(Integer, "sqlite")

# 64 lower-case hexadecimal digits, in SQL that both databases understand.
SHA256_CHECK = "length(sha256) = 64 AND ltrim(sha256, '0123456789abcdef') = ''"

# A task's attachment has exactly one source, and known kinds.
ATTACHMENT_CHECKS = {
    "kind": "kind IN ('spec', 'diagram', 'artifact', 'diagnostic', 'archive', 'other')",
    "source_type": "source_type IN ('managed_blob', 'external_url', 'repo_path')",
    "media_type_source": "media_type_source IN ('sniffed', 'declared', 'inferred', 'unknown')",
    "source": """
        (source_type = 'managed_blob' AND blob_id IS NOT NULL AND external_url IS NULL AND repo_path IS NULL) OR
        (source_type = 'external_url' AND blob_id IS NULL AND external_url IS NOT NULL AND repo_path IS NULL) OR
        (source_type = 'repo_path' AND blob_id IS NULL AND external_url IS NULL AND repo_path IS NOT NULL)
    """,
    "expires_at": "expires_at IS NULL OR expires_at >= created_at",
}

topics = Table(
    "topics",
    metadata,
    Column("id", Text, primary_key=True),
    Column("title", Text, nullable=False),
    Column("created_at", Text, nullable=False),
)

messages = Table(
    "messages",
    metadata,
    Column("id", Text, primary_key=True),
    Column("topic_id", Text, ForeignKey("topics.id", ondelete="CASCADE"), nullable=False),
    Column("sender", Text, nullable=False),
    Column("content", Text, nullable=False),
    Column("created_at", Text, nullable=False),
    # Target of the foreign key that keeps an attachment and its message in the same topic.
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
# The identity of an attachment. A missing key and an empty key are the same.
Index(
    "idx_topic_attachments_dedupe",
    topic_attachments.c.topic_id,
    topic_attachments.c.kind,
    func.coalesce(topic_attachments.c.key, ""),
    topic_attachments.c.dedupe_key,
    unique=True,
)
Index("idx_topic_attachments_newest", topic_attachments.c.topic_id, topic_attachments.c.id)
# For lists of one kind. Its condition, which is always true, keeps PostgreSQL from using it for single attachments.
Index(
    "idx_topic_attachments_kind",
    topic_attachments.c.topic_id,
    topic_attachments.c.kind,
    topic_attachments.c.id,
    postgresql_where=text("id > ''"),
)

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
    # The request key of the keyed request that appended the event; a second run of the request finds it.
    Column("request_key", Text),
    sqlite_autoincrement=True,
)
# Most events of a backfill have neither a topic nor a request key, so the indexes leave them out.
_of_a_topic, _of_a_request = text("topic_id IS NOT NULL"), text("request_key IS NOT NULL")
Index(
    "idx_events_topic",
    events.c.topic_id,
    events.c.event_id,
    sqlite_where=_of_a_topic,
    postgresql_where=_of_a_topic,
)
Index(
    "idx_events_request",
    events.c.request_key,
    unique=True,
    sqlite_where=_of_a_request,
    postgresql_where=_of_a_request,
)

# One row: the epoch of the log, and the oldest event that retention has not deleted.
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
    Column("expires_at", Text),
    # The hour of the last use.
    Column("last_used_at", Text),
)

# Actions of operators, with their time and result. Rows are only appended; triggers refuse to change them.
audit_log = Table(
    "audit_log",
    metadata,
    Column("audit_id", _big, Identity(always=True), primary_key=True),
    Column("created_at", Text, nullable=False),
    Column("principal", Text, nullable=False),
    Column("token_id", Text),
    Column("client", Text),
    # `api`, `command` or `job`.
    Column("source", Text, nullable=False),
    Column("request_id", Text),
    Column("action", Text, nullable=False),
    Column("target", Text),
    Column("details", Text, nullable=False),
    Column("result", Text, nullable=False),
    # The row `started` that this one is the result of.
    Column("started_id", BigInteger),
    sqlite_autoincrement=True,
)
# For retention.
Index("idx_audit_log_created", audit_log.c.created_at)

# Every claim that went in doubt: the record from which events are appended once, and deliveries to `hub.on_doubt`.
doubts = Table(
    "doubts",
    metadata,
    Column("doubt_id", Text, primary_key=True),
    # The claim, whose scope begins with the namespace.
    Column("scope", Text, nullable=False),
    Column("key", Text, nullable=False),
    Column("version", BigInteger, nullable=False),
    # The JSON object that `hub.on_doubt` gets, the same in every attempt.
    Column("body", Text, nullable=False),
    Column("created_at", Text, nullable=False),
    Column("resolved_at", Text),
    Column("delivered_at", Text),
    Column("attempts", Integer, nullable=False, server_default="0"),
    Column("next_attempt_at", Text, nullable=False, server_default=""),
)
_is_open, _is_resolved = text("resolved_at IS NULL"), text("resolved_at IS NOT NULL")
Index("idx_doubts_open", doubts.c.doubt_id, sqlite_where=_is_open, postgresql_where=_is_open)
Index("idx_doubts_resolved", doubts.c.resolved_at, sqlite_where=_is_resolved, postgresql_where=_is_resolved)

console_sessions = Table(
    "console_sessions",
    metadata,
    # The digest of the cookie, so that a copy of the database gives no access.
    Column("session_digest", Text, primary_key=True),
    Column("token_id", Text, nullable=False),
    Column("created_at", Text, nullable=False),
    Column("expires_at", Text, nullable=False),
)
Index("idx_console_sessions_expires", console_sessions.c.expires_at)

tasks = Table(
    "tasks",
    metadata,
    Column("id", Text, primary_key=True),
    Column("title", Text, nullable=False),
    Column("spec_id", Text),
    Column("created_at", Text, nullable=False),
    Column("updated_at", Text, nullable=False),
    Column("request_key", Text, unique=True),
)
# For pages of tasks, newest first.
Index("idx_tasks_created", tasks.c.created_at, tasks.c.id)

blobs = Table(
    "blobs",
    metadata,
    Column("id", Text, primary_key=True),
    Column("sha256", Text, nullable=False, unique=True),
    Column("size_bytes", BigInteger, nullable=False),
    Column("storage_backend", Text, nullable=False),
    Column("blob_key", Text, nullable=False),
    Column("created_at", Text, nullable=False),
    # When these bytes were last uploaded: the grace period of gc starts here.
    Column("uploaded_at", Text, nullable=False),
    CheckConstraint("size_bytes >= 0", name="blobs_size_bytes"),
    CheckConstraint(SHA256_CHECK, name="blobs_sha256"),
)

attachments = Table(
    "attachments",
    metadata,
    Column("id", Text, primary_key=True),
    Column("task_id", Text, ForeignKey("tasks.id", ondelete="CASCADE"), nullable=False),
    Column("kind", Text, nullable=False),
    Column("source_type", Text, nullable=False),
    Column("title", Text),
    Column("filename", Text),
    Column("media_type", Text),
    Column("media_type_source", Text, nullable=False, server_default="unknown"),
    Column("blob_id", Text, ForeignKey("blobs.id", ondelete="RESTRICT")),
    Column("external_url", Text),
    Column("repo_path", Text),
    Column("meta_json", Text),
    Column("created_at", Text, nullable=False),
    Column("updated_at", Text, nullable=False),
    Column("expires_at", Text),
    Column("request_key", Text, unique=True),
    # The principal that uploaded it; null for a link, and for uploads to an earlier version.
    Column("principal", Text),
    *(CheckConstraint(rule, name=f"attachments_{name}") for name, rule in ATTACHMENT_CHECKS.items()),
)
Index("idx_attachments_task_created", attachments.c.task_id, attachments.c.created_at)
Index("idx_attachments_kind", attachments.c.kind)
Index("idx_attachments_media_type", attachments.c.media_type)
Index("idx_attachments_source_type", attachments.c.source_type)
Index("idx_attachments_blob_id", attachments.c.blob_id)
Index("idx_attachments_expires_at", attachments.c.expires_at)

# The sizes of each principal's attachments, added up. `tasks/quota.py` changes a row with each of its attachments.
stored_bytes = Table(
    "stored_bytes",
    metadata,
    Column("principal", Text, primary_key=True),
    Column("stored_bytes", BigInteger, nullable=False),
    Column("attachment_count", BigInteger, nullable=False),
)

attachment_labels = Table(
    "attachment_labels",
    metadata,
    Column("attachment_id", Text, ForeignKey("attachments.id", ondelete="CASCADE"), primary_key=True),
    Column("label", Text, primary_key=True),
)
Index("idx_attachment_labels_label", attachment_labels.c.label)

# One row: whether requests work on the test schema.
ingest_mode = Table(
    "ingest_mode",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("test_mode", Boolean, nullable=False),
    CheckConstraint("id = 1", name="ingest_mode_one_row"),
)

turn_tables(metadata)

# The schemas of ingest, with the same tables each: real schemas on PostgreSQL, prefixes of table names on SQLite.
SCHEMAS = ("pkm", "pkm_test")

POLICY_CHECKS = {
    "policy_key": "length(policy_key) > 0",
    "conflict_action": "conflict_action IN ('skip', 'update')",
    "secondary_role": "secondary_role IN ('identity', 'hint')",
}


@functools.cache
def metadata_on(*, is_sqlite: bool) -> MetaData:
    """Return every table as it is on SQLite or on PostgreSQL."""
    all_of_them = MetaData()
    for table in metadata.tables.values():
        table.to_metadata(all_of_them)
    for schema in SCHEMAS:
        _entries(all_of_them, None if is_sqlite else schema, f"{schema}_" if is_sqlite else "")
    return all_of_them


def _entries(into: MetaData, schema: str | None, prefix: str) -> None:
    policies = Table(
        f"{prefix}idempotency_policies",
        into,
        Column("policy_id", _big, Identity(), primary_key=True),
        Column("policy_key", Text, nullable=False, unique=True),
        Column("source", Text, nullable=False),
        # One content type, or several separated by slashes.
        Column("content_type", Text, nullable=False),
        Column("conflict_action", Text, nullable=False),
        # The JSON list of the columns that an update changes; null: all columns that can be changed.
        Column("update_fields", Text),
        Column("enabled", Boolean, nullable=False, server_default=true()),
        Column("secondary_role", Text, nullable=False, server_default="identity"),
        *(CheckConstraint(rule, name=f"idempotency_policies_{name}") for name, rule in POLICY_CHECKS.items()),
        schema=schema,
    )
    entries = Table(
        f"{prefix}entries",
        into,
        Column("entry_id", _big, Identity(), primary_key=True),
        Column("id", Uuid().with_variant(Text, "sqlite"), nullable=False, unique=True),
        Column("created_at", Text, nullable=False),
        Column("updated_at", Text, nullable=False),
        Column("source", Text, nullable=False),
        Column("content_type", Text),
        Column("title", Text),
        Column("author", Text),
        Column("url", Text),
        Column("url_canonical", Text),
        Column("capture_text", Text),
        Column("clean_text", Text),
        Column("content_hash", Text),
        Column("external_ref", Text),
        # The compact JSON of an object.
        Column("metadata", Text, nullable=False, server_default="{}"),
        Column("idempotency_policy_id", BigInteger, ForeignKey(policies.c.policy_id, ondelete="RESTRICT")),
        Column("idempotency_key_primary", Text),
        Column("idempotency_key_secondary", Text),
        schema=schema,
        sqlite_autoincrement=True,
    )
    # The identity of an entry: within a policy, no two entries share a key.
    for role in ("primary", "secondary"):
        key = entries.c[f"idempotency_key_{role}"]
        there = text(f"{key.name} IS NOT NULL")
        Index(
            f"idx_{prefix}entries_{role}",
            entries.c.idempotency_policy_id,
            key,
            unique=True,
            postgresql_where=there,
            sqlite_where=there,
        )
