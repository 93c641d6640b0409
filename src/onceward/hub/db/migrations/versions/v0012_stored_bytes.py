"""The bytes that each principal stores: a counter, and the principal of each attachment."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    op.create_table(
        "stored_bytes",
        sa.Column("principal", sa.Text, primary_key=True),
        sa.Column("stored_bytes", sa.BigInteger, nullable=False),
        sa.Column("attachment_count", sa.BigInteger, nullable=False),
    )
    # Null for attachments from before: nobody recorded who uploaded them.
    op.add_column("attachments", sa.Column("principal", sa.Text))


def downgrade() -> None:
    op.drop_column("attachments", "principal")
    op.drop_table("stored_bytes")
