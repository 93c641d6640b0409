"""Expiry and last use of tokens."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    for name in ("expires_at", "last_used_at"):
        op.add_column("tokens", sa.Column(name, sa.Text))
