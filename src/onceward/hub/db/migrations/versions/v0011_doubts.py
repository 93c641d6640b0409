"""The record of doubts, and an index that counts finished turns by state without reading their rows."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    op.create_table(
        "doubts",
        sa.Column("doubt_id", sa.Text, primary_key=True),
        sa.Column("scope", sa.Text, nullable=False),
        sa.Column("key", sa.Text, nullable=False),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
        sa.Column("created_at", sa.Text, nullable=False),
        sa.Column("resolved_at", sa.Text),
        sa.Column("delivered_at", sa.Text),
        sa.Column("attempts", sa.Integer, nullable=False, server_default="0"),
        sa.Column("next_attempt_at", sa.Text, nullable=False, server_default=""),
    )
    _index("idx_doubts_open", "doubts", "doubt_id", "resolved_at IS NULL")
    _index("idx_doubts_resolved", "doubts", "resolved_at", "resolved_at IS NOT NULL")
    _index("idx_turns_finished", "turns", "state", "state IN ('complete', 'superseded', 'failed')")


def _index(name: str, table: str, column: str, rule: str) -> None:
    where = sa.text(rule)
    op.create_index(name, table, [column], sqlite_where=where, postgresql_where=where)


def downgrade() -> None:
    op.drop_index("idx_turns_finished", "turns")
    op.drop_table("doubts")
