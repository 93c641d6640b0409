"""Turns, their messages, streams and tool calls, and the artifacts of brains."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"

_BIG = sa.BigInteger().with_variant(sa.Integer, "sqlite")
_STATES = "state IN ('accumulating', 'processing', 'committing', 'complete', 'superseded', 'failed')"
_RUNNING = "state IN ('processing', 'committing')"
_UNFINISHED = "state IN ('accumulating', 'processing', 'committing')"
_SESSION = ["principal", "tenant_id", "session_key"]


def upgrade() -> None:
    op.create_table(
        "turns",
        sa.Column("seq", _BIG, sa.Identity(), primary_key=True),
        sa.Column("id", sa.Text, nullable=False, unique=True),
        sa.Column("turn_group_id", sa.Text, nullable=False),
        sa.Column("principal", sa.Text, nullable=False),
        sa.Column("tenant_id", sa.Text, nullable=False),
        sa.Column("agent_id", sa.Text, nullable=False),
        sa.Column("customer_id", sa.Text, nullable=False),
        sa.Column("channel", sa.Text, nullable=False),
        sa.Column("session_key", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("epoch", sa.Integer, nullable=False, server_default="1"),
        sa.Column("commit_point", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.Column("effects_started", sa.Integer, nullable=False, server_default="0"),
        sa.Column("attempts", sa.Integer, nullable=False, server_default="0"),
        sa.Column("failures", sa.Integer, nullable=False, server_default="0"),
        sa.Column("accumulate_until", sa.Text, nullable=False),
        sa.Column("response", sa.Text),
        sa.Column("failure", sa.Text),
        sa.Column("superseded_by", sa.Text),
        sa.Column("reason", sa.Text),
        sa.Column("created_at", sa.Text, nullable=False),
        sa.Column("updated_at", sa.Text, nullable=False),
        sa.Column("completed_at", sa.Text),
        sa.Column("delivered_at", sa.Text),
        sa.CheckConstraint(_STATES, name="turns_state"),
        sqlite_autoincrement=True,
    )
    for name, columns, unique, rule in (
        ("idx_turns_running", _SESSION, True, _RUNNING),
        ("idx_turns_unfinished", [*_SESSION, "seq"], False, _UNFINISHED),
        ("idx_turns_due", ["seq"], False, _UNFINISHED),
        ("idx_turns_undelivered", ["seq"], False, "state = 'complete' AND delivered_at IS NULL"),
    ):
        where = sa.text(rule)
        op.create_index(name, "turns", columns, unique=unique, postgresql_where=where, sqlite_where=where)
    _messages()
    _recorded()
    _artifacts()


def _messages() -> None:
    op.create_table(
        "turn_messages",
        sa.Column("seq", _BIG, sa.Identity(), primary_key=True),
        sa.Column("principal", sa.Text, nullable=False),
        sa.Column("tenant_id", sa.Text, nullable=False),
        sa.Column("session_key", sa.Text, nullable=False),
        sa.Column("message_id", sa.Text, nullable=False),
        sa.Column("turn_id", sa.Text, sa.ForeignKey("turns.id", ondelete="CASCADE"), nullable=False),
        sa.Column("content", sa.Text, nullable=False),
        sa.Column("metadata", sa.Text, nullable=False),
        sa.Column("idempotency_key", sa.Text),
        sa.Column("fingerprint", sa.Text, nullable=False),
        sa.Column("content_hash", sa.Text),
        sa.Column("created_at", sa.Text, nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_index("idx_turn_messages_id", "turn_messages", [*_SESSION, "message_id"], unique=True)
    op.create_index(
        "idx_turn_messages_key", "turn_messages", ["principal", "tenant_id", "idempotency_key"], unique=True
    )
    op.create_index("idx_turn_messages_turn", "turn_messages", ["turn_id", "seq"])
    op.create_index("idx_turn_messages_content", "turn_messages", [*_SESSION, "content_hash", "created_at"])


def _recorded() -> None:
    op.create_table(
        "turn_chunks",
        sa.Column("turn_id", sa.Text, sa.ForeignKey("turns.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("version", sa.Integer, primary_key=True),
        sa.Column("seq", sa.Integer, primary_key=True),
        sa.Column("event", sa.Text, nullable=False),
        sa.Column("data", sa.Text, nullable=False),
    )
    op.create_table(
        "turn_tools",
        sa.Column("seq", _BIG, sa.Identity(), primary_key=True),
        sa.Column("turn_id", sa.Text, sa.ForeignKey("turns.id", ondelete="CASCADE"), nullable=False),
        sa.Column("turn_group_id", sa.Text, nullable=False),
        sa.Column("epoch", sa.Integer, nullable=False),
        sa.Column("tool", sa.Text, nullable=False),
        sa.Column("key", sa.Text, nullable=False),
        sa.Column("generation", sa.Integer, nullable=False),
        sa.Column("arguments", sa.Text, nullable=False),
        sa.Column("effect", sa.Text, nullable=False),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("undo_wanted", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.Column("receipt", sa.Text),
        sa.Column("created_at", sa.Text, nullable=False),
        sa.Column("updated_at", sa.Text, nullable=False),
        sa.CheckConstraint(
            "status IN ('started', 'done', 'undone', 'failed', 'unknown')",
            name="turn_tools_status",
        ),
        sqlite_autoincrement=True,
    )
    op.create_index("idx_turn_tools_turn", "turn_tools", ["turn_id", "seq"])
    op.create_index("idx_turn_tools_group", "turn_tools", ["turn_group_id", "key"])


def _artifacts() -> None:
    op.create_table(
        "artifacts",
        sa.Column("principal", sa.Text, primary_key=True),
        sa.Column("tenant_id", sa.Text, primary_key=True),
        sa.Column("session_key", sa.Text, primary_key=True),
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("input_fp", sa.Text, primary_key=True),
        sa.Column("dep_fp", sa.Text, primary_key=True),
        sa.Column("value", sa.Text),
        sa.Column("blob_sha256", sa.Text),
        sa.Column("blob_key", sa.Text),
        sa.Column("created_at", sa.Text, nullable=False),
        sa.Column("expires_at", sa.Text),
    )
    op.create_index("idx_artifacts_expires_at", "artifacts", ["expires_at"])
