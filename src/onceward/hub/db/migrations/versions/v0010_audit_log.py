"""The audit log. Triggers refuse to change its rows, and to delete those of the last 30 days."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"

_BIG = sa.BigInteger().with_variant(sa.Integer, "sqlite")

_SQLITE_TRIGGERS = (
    """
    CREATE TRIGGER audit_log_is_not_changed BEFORE UPDATE ON audit_log
    BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END
    """,
    """
    CREATE TRIGGER audit_log_is_kept BEFORE DELETE ON audit_log
    WHEN OLD.created_at > strftime('%Y-%m-%dT%H:%M:%S', 'now', '-30 days')
    BEGIN SELECT RAISE(ABORT, 'the audit log is kept for at least 30 days'); END
    """,
    # REPLACE deletes without firing the trigger above.
    """
    CREATE TRIGGER audit_log_is_not_replaced BEFORE INSERT ON audit_log
    WHEN EXISTS (SELECT 1 FROM audit_log WHERE audit_id = NEW.audit_id)
    BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END
    """,
)

_POSTGRES_TRIGGERS = (
    """
    CREATE FUNCTION onceward_refuse_kept_audit() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN
      IF OLD.created_at > to_char(now() AT TIME ZONE 'UTC' - interval '30 days', 'YYYY-MM-DD"T"HH24:MI:SS') THEN
        RAISE EXCEPTION 'the audit log is kept for at least 30 days' USING ERRCODE = 'restrict_violation';
      END IF;
      RETURN OLD;
    END $$
    """,
    """
    CREATE TRIGGER audit_log_is_not_changed BEFORE UPDATE ON audit_log
    FOR EACH ROW EXECUTE FUNCTION onceward_refuse('the audit log is append-only')
    """,
    """
    CREATE TRIGGER audit_log_is_kept BEFORE DELETE ON audit_log
    FOR EACH ROW EXECUTE FUNCTION onceward_refuse_kept_audit()
    """,
    """
    CREATE TRIGGER audit_log_is_not_emptied BEFORE TRUNCATE ON audit_log
    FOR EACH STATEMENT EXECUTE FUNCTION onceward_refuse('the audit log is append-only')
    """,
)


def upgrade() -> None:
    op.create_table(
        "audit_log",
        sa.Column("audit_id", _BIG, sa.Identity(always=True), primary_key=True),
        sa.Column("created_at", sa.Text, nullable=False),
        sa.Column("principal", sa.Text, nullable=False),
        sa.Column("token_id", sa.Text),
        sa.Column("client", sa.Text),
        sa.Column("source", sa.Text, nullable=False),
        sa.Column("request_id", sa.Text),
        sa.Column("action", sa.Text, nullable=False),
        sa.Column("target", sa.Text),
        sa.Column("details", sa.Text, nullable=False),
        sa.Column("result", sa.Text, nullable=False),
        sa.Column("started_id", sa.BigInteger),
        sqlite_autoincrement=True,
    )
    op.create_index("idx_audit_log_created", "audit_log", ["created_at"])
    triggers = _SQLITE_TRIGGERS if op.get_bind().dialect.name == "sqlite" else _POSTGRES_TRIGGERS
    for trigger in triggers:
        # A colon would be taken for a parameter.
        op.execute(sa.text(trigger.replace(":", r"\:")))
