"""Index on topic attachments by kind, so that a page of one kind does not read the other kinds."""

from __future__ import annotations

from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    op.create_index("idx_topic_attachments_kind", "topic_attachments", ["topic_id", "kind", "id"])


def downgrade() -> None:
    op.drop_index("idx_topic_attachments_kind", "topic_attachments")
