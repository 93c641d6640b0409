"""Partial indexes on events: without a topic or a request key, an event is not indexed and cheaper to append."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"

# SQLite cannot drop a constraint, so the events move to a new table, whose ids continue where the old table ended.
_COLUMNS = "event_id, name, topic_id, entity_type, entity_id, data, created_at, request_key"
_SQLITE = (
    """
    CREATE TABLE events_moved (
        event_id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
        name TEXT NOT NULL,
        topic_id TEXT,
        entity_type TEXT NOT NULL,
        entity_id TEXT NOT NULL,
        data TEXT NOT NULL,
        created_at TEXT NOT NULL,
        request_key TEXT
    )
    """,
    f"INSERT INTO events_moved ({_COLUMNS}) SELECT {_COLUMNS} FROM events ORDER BY event_id",  # noqa: S608  # constants
    "DELETE FROM sqlite_sequence WHERE name = 'events_moved'",
    "INSERT INTO sqlite_sequence (name, seq) SELECT 'events_moved', seq FROM sqlite_sequence WHERE name = 'events'",
    "DROP TABLE events",
    "ALTER TABLE events_moved RENAME TO events",
)


def upgrade() -> None:
    if op.get_bind().dialect.name == "sqlite":
        # The triggers are dropped with the old table, and created again unchanged.
        triggers = op.get_bind().scalars(
            sa.text("SELECT sql FROM sqlite_master WHERE type = 'trigger' AND tbl_name = 'events'")
        )
        for statement in (*_SQLITE, *triggers.all()):
            op.execute(sa.text(statement))
    else:
        op.drop_index("idx_events_topic", "events")
        op.drop_constraint("events_request_key_key", "events")
    _index("idx_events_topic", ["topic_id", "event_id"], "topic_id IS NOT NULL", unique=False)
    _index("idx_events_request", ["request_key"], "request_key IS NOT NULL", unique=True)


def _index(name: str, columns: list[str], where: str, *, unique: bool) -> None:
    condition = sa.text(where)
    op.create_index(name, "events", columns, unique=unique, sqlite_where=condition, postgresql_where=condition)
