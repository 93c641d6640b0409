"""Tables of turns: turns, their messages, streams and tool calls, and the artifacts of brains."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    ForeignKey,
    Identity,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    false,
    text,
)

# SQLite generates ids only for a column declared as INTEGER.
_big = BigInteger().with_variant(Integer, "sqlite")

_STATES = "state IN ('accumulating', 'processing', 'committing', 'complete', 'superseded', 'failed')"
_CALL_STATUSES = "status IN ('started', 'done', 'undone', 'failed', 'unknown')"
_SESSION = ("principal", "tenant_id", "session_key")


def turn_tables(into: MetaData) -> None:
    _turns(into)
    _messages(into)
    _recorded(into)
    _artifacts(into)


def _turns(into: MetaData) -> None:
    turns = Table(
        "turns",
        into,
        # The order of arrival, which is also the order in which the turns of a session run.
        Column("seq", _big, Identity(), primary_key=True),
        Column("id", Text, nullable=False, unique=True),
        Column("turn_group_id", Text, nullable=False),
        Column("principal", Text, nullable=False),
        Column("tenant_id", Text, nullable=False),
        Column("agent_id", Text, nullable=False),
        Column("customer_id", Text, nullable=False),
        Column("channel", Text, nullable=False),
        Column("session_key", Text, nullable=False),
        Column("state", Text, nullable=False),
        Column("epoch", Integer, nullable=False, server_default="1"),
        Column("commit_point", Boolean, nullable=False, server_default=false()),
        Column("effects_started", Integer, nullable=False, server_default="0"),
        Column("attempts", Integer, nullable=False, server_default="0"),
        Column("failures", Integer, nullable=False, server_default="0"),
        Column("accumulate_until", Text, nullable=False),
        # The brain's response as compact JSON.
        Column("response", Text),
        Column("failure", Text),
        Column("superseded_by", Text),
        Column("reason", Text),
        Column("created_at", Text, nullable=False),
        Column("updated_at", Text, nullable=False),
        Column("completed_at", Text),
        Column("delivered_at", Text),
        CheckConstraint(_STATES, name="turns_state"),
        sqlite_autoincrement=True,
    )
    for name, columns, unique, rule in (
        # At most one running turn for each session, enforced by the database.
        ("idx_turns_running", _SESSION, True, "state IN ('processing', 'committing')"),
        ("idx_turns_unfinished", (*_SESSION, "seq"), False, "state IN ('accumulating', 'processing', 'committing')"),
        # For the sweep.
        ("idx_turns_due", ("seq",), False, "state IN ('accumulating', 'processing', 'committing')"),
        ("idx_turns_undelivered", ("seq",), False, "state = 'complete' AND delivered_at IS NULL"),
        # For the gauge. Unfinished turns change often and are counted through `idx_turns_due`.
        ("idx_turns_finished", ("state",), False, "state IN ('complete', 'superseded', 'failed')"),
    ):
        where = text(rule)
        Index(name, *(turns.c[one] for one in columns), unique=unique, postgresql_where=where, sqlite_where=where)


def _messages(into: MetaData) -> None:
    messages = Table(
        "turn_messages",
        into,
        Column("seq", _big, Identity(), primary_key=True),
        Column("principal", Text, nullable=False),
        Column("tenant_id", Text, nullable=False),
        Column("session_key", Text, nullable=False),
        Column("message_id", Text, nullable=False),
        # The turn that carries the message now. It changes when that turn is superseded or retried.
        Column("turn_id", Text, ForeignKey("turns.id", ondelete="CASCADE"), nullable=False),
        Column("content", Text, nullable=False),
        Column("metadata", Text, nullable=False),
        Column("idempotency_key", Text),
        Column("fingerprint", Text, nullable=False),
        Column("content_hash", Text),
        Column("created_at", Text, nullable=False),
        sqlite_autoincrement=True,
    )
    for name, columns, unique in (
        ("id", (*_SESSION, "message_id"), True),
        ("key", ("principal", "tenant_id", "idempotency_key"), True),
        ("turn", ("turn_id", "seq"), False),
        ("content", (*_SESSION, "content_hash", "created_at"), False),
    ):
        Index(f"idx_turn_messages_{name}", *(messages.c[one] for one in columns), unique=unique)


def _recorded(into: MetaData) -> None:
    Table(
        "turn_chunks",
        into,
        Column("turn_id", Text, ForeignKey("turns.id", ondelete="CASCADE"), primary_key=True),
        Column("version", Integer, primary_key=True),
        Column("seq", Integer, primary_key=True),
        Column("event", Text, nullable=False),
        Column("data", Text, nullable=False),
    )
    tools = Table(
        "turn_tools",
        into,
        Column("seq", _big, Identity(), primary_key=True),
        Column("turn_id", Text, ForeignKey("turns.id", ondelete="CASCADE"), nullable=False),
        Column("turn_group_id", Text, nullable=False),
        Column("epoch", Integer, nullable=False),
        Column("tool", Text, nullable=False),
        Column("key", Text, nullable=False),
        # How often calls with this key were undone before this one.
        Column("generation", Integer, nullable=False),
        Column("arguments", Text, nullable=False),
        Column("effect", Text, nullable=False),
        Column("status", Text, nullable=False),
        # The turn was superseded or absorbed a message: the next run must undo this call first.
        Column("undo_wanted", Boolean, nullable=False, server_default=false()),
        Column("receipt", Text),
        Column("created_at", Text, nullable=False),
        Column("updated_at", Text, nullable=False),
        CheckConstraint(_CALL_STATUSES, name="turn_tools_status"),
        sqlite_autoincrement=True,
    )
    turn_artifacts = Table(
        "turn_artifacts",
        into,
        Column("seq", _big, Identity(), primary_key=True),
        Column("turn_id", Text, ForeignKey("turns.id", ondelete="CASCADE"), nullable=False),
        # The run that asked for the artifact.
        Column("epoch", Integer, nullable=False),
        Column("name", Text, nullable=False),
        Column("reused", Boolean, nullable=False),
        Column("reason", Text, nullable=False),
        Column("computed_at", Text, nullable=False),
        sqlite_autoincrement=True,
    )
    Index("idx_turn_artifacts_turn", turn_artifacts.c.turn_id, turn_artifacts.c.seq)
    Index("idx_turn_tools_turn", tools.c.turn_id, tools.c.seq)
    Index("idx_turn_tools_group", tools.c.turn_group_id, tools.c.key)


def _artifacts(into: MetaData) -> None:
    artifacts = Table(
        "artifacts",
        into,
        Column("principal", Text, primary_key=True),
        Column("tenant_id", Text, primary_key=True),
        Column("session_key", Text, primary_key=True),
        Column("name", Text, primary_key=True),
        Column("input_fp", Text, primary_key=True),
        Column("dep_fp", Text, primary_key=True),
        # The value as compact JSON, or the blob that contains it.
        Column("value", Text),
        Column("blob_sha256", Text),
        Column("blob_key", Text),
        Column("created_at", Text, nullable=False),
        Column("expires_at", Text),
    )
    Index("idx_artifacts_expires_at", artifacts.c.expires_at)
    has_blob = text("blob_sha256 IS NOT NULL")
    Index("idx_artifacts_blob_sha256", artifacts.c.blob_sha256, sqlite_where=has_blob, postgresql_where=has_blob)
