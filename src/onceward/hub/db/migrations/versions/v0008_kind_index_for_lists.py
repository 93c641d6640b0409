"""PostgreSQL: the index by kind serves lists only, not lookups of one attachment.

Until a table is analyzed, PostgreSQL takes this index for as selective as the unique one, and it is smaller. A lookup
of one attachment then reads all attachments of its kind.
"""

from __future__ import annotations

from alembic import op
from sqlalchemy import text

revision = "0008"
down_revision = "0007"

_NAME, _TABLE, _COLUMNS = "idx_topic_attachments_kind", "topic_attachments", ["topic_id", "kind", "id"]


def upgrade() -> None:
    if op.get_bind().dialect.name == "postgresql":
        op.drop_index(_NAME, _TABLE)
        op.create_index(_NAME, _TABLE, _COLUMNS, postgresql_where=text("id > ''"))


def downgrade() -> None:
    if op.get_bind().dialect.name == "postgresql":
        op.drop_index(_NAME, _TABLE)
        op.create_index(_NAME, _TABLE, _COLUMNS)
