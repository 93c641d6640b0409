"""Index on artifacts by blob, so that gc finds a blob's artifacts without reading the whole table."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    has_blob = sa.text("blob_sha256 IS NOT NULL")
    op.create_index(
        "idx_artifacts_blob_sha256", "artifacts", ["blob_sha256"], sqlite_where=has_blob, postgresql_where=has_blob
    )


def downgrade() -> None:
    op.drop_index("idx_artifacts_blob_sha256", "artifacts")
