"""Sessions of the console: the digest of a cookie, and the token that it was opened with."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    op.create_table(
        "console_sessions",
        sa.Column("session_digest", sa.Text, primary_key=True),
        sa.Column("token_id", sa.Text, nullable=False),
        sa.Column("created_at", sa.Text, nullable=False),
        sa.Column("expires_at", sa.Text, nullable=False),
    )
    op.create_index("idx_console_sessions_expires", "console_sessions", ["expires_at"])


def downgrade() -> None:
    op.drop_table("console_sessions")
