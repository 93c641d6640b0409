"""Topics, messages, topic attachments, the event log, and tokens."""

from __future__ import annotations

import secrets

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_BIG = sa.BigInteger().with_variant(sa.Integer, "sqlite")

_SQLITE_TRIGGERS = (
    """
    CREATE TRIGGER events_are_not_changed BEFORE UPDATE ON events
    BEGIN SELECT RAISE(ABORT, 'events are append-only'); END
    """,
    """
    CREATE TRIGGER events_are_kept BEFORE DELETE ON events
    WHEN OLD.event_id >= (SELECT oldest_event_id FROM event_log)
    BEGIN SELECT RAISE(ABORT, 'events are append-only; only retention deletes, below oldest_event_id'); END
    """,
    # REPLACE deletes without firing the trigger above.
    """
    CREATE TRIGGER events_are_not_replaced BEFORE INSERT ON events
    WHEN EXISTS (SELECT 1 FROM events WHERE event_id = NEW.event_id)
    BEGIN SELECT RAISE(ABORT, 'events are append-only'); END
    """,
    """
    CREATE TRIGGER event_log_moves_forward BEFORE UPDATE ON event_log
    WHEN NEW.oldest_event_id < OLD.oldest_event_id
    BEGIN SELECT RAISE(ABORT, 'oldest_event_id never goes back'); END
    """,
    """
    CREATE TRIGGER event_log_stays BEFORE DELETE ON event_log
    BEGIN SELECT RAISE(ABORT, 'the event log has one row'); END
    """,
)

_POSTGRES_TRIGGERS = (
    """
    CREATE FUNCTION onceward_refuse() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN RAISE EXCEPTION '%', TG_ARGV[0] USING ERRCODE = 'restrict_violation'; END $$
    """,
    """
    CREATE FUNCTION onceward_refuse_kept_event() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN
      IF OLD.event_id >= (SELECT oldest_event_id FROM event_log) THEN
        RAISE EXCEPTION 'events are append-only; only retention deletes, below oldest_event_id'
          USING ERRCODE = 'restrict_violation';
      END IF;
      RETURN OLD;
    END $$
    """,
    """
    CREATE TRIGGER events_are_not_changed BEFORE UPDATE ON events
    FOR EACH ROW EXECUTE FUNCTION onceward_refuse('events are append-only')
    """,
    """
    CREATE TRIGGER events_are_kept BEFORE DELETE ON events
    FOR EACH ROW EXECUTE FUNCTION onceward_refuse_kept_event()
    """,
    """
    CREATE TRIGGER events_are_not_emptied BEFORE TRUNCATE ON events
    FOR EACH STATEMENT EXECUTE FUNCTION onceward_refuse('events are append-only')
    """,
    """
    CREATE TRIGGER event_log_moves_forward BEFORE UPDATE ON event_log
    FOR EACH ROW WHEN (NEW.oldest_event_id < OLD.oldest_event_id)
    EXECUTE FUNCTION onceward_refuse('oldest_event_id never goes back')
    """,
    """
    CREATE TRIGGER event_log_stays BEFORE DELETE ON event_log
    FOR EACH ROW EXECUTE FUNCTION onceward_refuse('the event log has one row')
    """,
    """
    CREATE TRIGGER event_log_is_not_emptied BEFORE TRUNCATE ON event_log
    FOR EACH STATEMENT EXECUTE FUNCTION onceward_refuse('the event log has one row')
    """,
)


def upgrade() -> None:
    _topics()
    _events()
    op.create_table(
        "tokens",
        sa.Column("token_id", sa.Text, primary_key=True),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("digest", sa.Text, nullable=False),
        sa.Column("scopes", sa.Text, nullable=False),
        sa.Column("created_at", sa.Text, nullable=False),
        sa.Column("revoked_at", sa.Text),
    )


def _topics() -> None:
    op.create_table(
        "topics",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("title", sa.Text, nullable=False),
        sa.Column("created_at", sa.Text, nullable=False),
    )
    op.create_table(
        "messages",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("topic_id", sa.Text, sa.ForeignKey("topics.id", ondelete="CASCADE"), nullable=False),
        sa.Column("sender", sa.Text, nullable=False),
        sa.Column("content", sa.Text, nullable=False),
        sa.Column("created_at", sa.Text, nullable=False),
        sa.UniqueConstraint("topic_id", "id", name="messages_topic"),
    )
    op.create_table(
        "topic_attachments",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("topic_id", sa.Text, sa.ForeignKey("topics.id", ondelete="CASCADE"), nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("key", sa.Text),
        sa.Column("value_json", sa.Text, nullable=False),
        sa.Column("dedupe_key", sa.Text, nullable=False),
        sa.Column("source_message_id", sa.Text),
        sa.Column("created_at", sa.Text, nullable=False),
        sa.ForeignKeyConstraint(["topic_id", "source_message_id"], ["messages.topic_id", "messages.id"]),
        sa.CheckConstraint("length(kind) > 0", name="topic_attachments_kind"),
        sa.CheckConstraint("length(dedupe_key) > 0", name="topic_attachments_dedupe_key"),
    )
    op.create_index(
        "idx_topic_attachments_dedupe",
        "topic_attachments",
        ["topic_id", "kind", sa.text("COALESCE(key, '')"), "dedupe_key"],
        unique=True,
    )
    op.create_index("idx_topic_attachments_newest", "topic_attachments", ["topic_id", "id"])


def _events() -> None:
    op.create_table(
        "events",
        sa.Column("event_id", _BIG, sa.Identity(always=True), primary_key=True),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("topic_id", sa.Text),
        sa.Column("entity_type", sa.Text, nullable=False),
        sa.Column("entity_id", sa.Text, nullable=False),
        sa.Column("data", sa.Text, nullable=False),
        sa.Column("created_at", sa.Text, nullable=False),
        # The request key of the keyed request that appended the event; a second run of the request finds it.
        sa.Column("request_key", sa.Text, unique=True),
        sqlite_autoincrement=True,
    )
    op.create_index("idx_events_topic", "events", ["topic_id", "event_id"])
    log = op.create_table(
        "event_log",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("log_epoch", sa.Text, nullable=False),
        sa.Column("oldest_event_id", sa.BigInteger, nullable=False),
        sa.CheckConstraint("id = 1", name="event_log_one_row"),
    )
    # A new log counts from 1 again. From the epoch, a client sees that its cursor belongs to another log.
    if op.get_context().as_sql:
        # A script may run in several databases, and each needs its own epoch.
        op.execute("INSERT INTO event_log VALUES (1, substr(md5(gen_random_uuid()::text), 1, 16), 1)")
    else:
        op.bulk_insert(log, [{"id": 1, "log_epoch": secrets.token_hex(8), "oldest_event_id": 1}])
    triggers = _SQLITE_TRIGGERS if op.get_bind().dialect.name == "sqlite" else _POSTGRES_TRIGGERS
    for trigger in triggers:
        op.execute(sa.text(trigger))
