"""A page of a topic's attachments of one kind is read from an index, however many of other kinds there are."""

from __future__ import annotations

from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    op.create_index("idx_topic_attachments_kind", "topic_attachments", ["topic_id", "kind", "id"])


def downgrade() -> None:
    op.drop_index("idx_topic_attachments_kind", "topic_attachments")
