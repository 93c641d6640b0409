"""Index that counts finished turns by state without reading their rows."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0008"


def upgrade() -> None:
    is_finished = sa.text("state IN ('complete', 'superseded', 'failed')")
    op.create_index("idx_turns_finished", "turns", ["state"], sqlite_where=is_finished, postgresql_where=is_finished)


def downgrade() -> None:
    op.drop_index("idx_turns_finished", "turns")
