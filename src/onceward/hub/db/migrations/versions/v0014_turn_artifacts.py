"""Artifacts of turns: which ones each run reused or computed, and why."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"

_big = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    op.create_table(
        "turn_artifacts",
        sa.Column("seq", _big, sa.Identity(), primary_key=True),
        sa.Column("turn_id", sa.Text, sa.ForeignKey("turns.id", ondelete="CASCADE"), nullable=False),
        sa.Column("epoch", sa.Integer, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("reused", sa.Boolean, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("computed_at", sa.Text, nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_index("idx_turn_artifacts_turn", "turn_artifacts", ["turn_id", "seq"])


def downgrade() -> None:
    op.drop_table("turn_artifacts")
