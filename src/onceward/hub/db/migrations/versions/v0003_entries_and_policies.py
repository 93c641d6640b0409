"""Entries and their policies in two schemas, and the choice of the active schema.

PostgreSQL has real schemas, `pkm` and `pkm_test`. SQLite has both in one file, with a prefix in the table names.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from onceward.errors import WriteRefused

revision = "0003"
down_revision = "0002"

_SCHEMAS = ("pkm", "pkm_test")
_TABLES = ("idempotency_policies", "entries")
_BIG = sa.BigInteger().with_variant(sa.Integer, "sqlite")

_POLICY_CHECKS = {
    "policy_key": "length(policy_key) > 0",
    "conflict_action": "conflict_action IN ('skip', 'update')",
    "secondary_role": "secondary_role IN ('identity', 'hint')",
}

# policy_key, source, content_type, conflict_action, enabled, secondary_role
_POLICIES = (
    ("telegram_thought_v1", "telegram", "thought/note", "update", True, "hint"),
    ("telegram_link_v1", "telegram", "link", "skip", True, "identity"),
    ("email_newsletter_v1", "email", "newsletter", "skip", True, "identity"),
    ("email_correspondence_thread_v1", "email", "correspondence_thread", "update", True, "identity"),
    ("email_correspondence_thread_v2", "email", "correspondence_thread", "update", False, "identity"),
)


def upgrade() -> None:
    is_sqlite = op.get_bind().dialect.name == "sqlite"
    for schema in _SCHEMAS:
        if is_sqlite:
            _tables(None, f"{schema}_")
        else:
            _make_schema(schema)
            _tables(schema, "")
    mode = op.create_table(
        "ingest_mode",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("test_mode", sa.Boolean, nullable=False),
        sa.CheckConstraint("id = 1", name="ingest_mode_one_row"),
    )
    op.bulk_insert(mode, [{"id": 1, "test_mode": False}])


def _make_schema(schema: str) -> None:
    if op.get_context().as_sql:
        # A script for a role that can create schemas.
        op.execute(sa.schema.CreateSchema(schema, if_not_exists=True))
        return
    tx = op.get_bind()
    names = {"schema": schema}
    # Not CREATE SCHEMA IF NOT EXISTS: it fails for a role that cannot create schemas, even if the schema exists.
    if tx.execute(sa.text("SELECT to_regnamespace(:schema) IS NULL"), names).scalar():
        if not tx.execute(sa.text("SELECT has_database_privilege(current_database(), 'CREATE')")).scalar():
            raise WriteRefused(
                f"the database has no schema {schema!r} and this role cannot create it; as the owner of the database,"
                f" run GRANT CREATE ON DATABASE for the role, or CREATE SCHEMA {schema} AUTHORIZATION for it"
            )
        op.execute(sa.schema.CreateSchema(schema))
    elif not tx.execute(sa.text("SELECT has_schema_privilege(:schema, 'CREATE')"), names).scalar():
        raise WriteRefused(
            f"this role cannot create tables in the schema {schema!r}; as the owner of the schema,"
            " run GRANT CREATE, USAGE ON SCHEMA for the role"
        )
    for table in _TABLES:
        if tx.execute(sa.text("SELECT to_regclass(:name) IS NOT NULL"), {"name": f"{schema}.{table}"}).scalar():
            raise WriteRefused(
                f"the schema {schema!r} has a table {table!r} that is not Onceward's; move or rename it first"
            )


def _tables(schema: str | None, prefix: str) -> None:
    within = "" if schema is None else f"{schema}."
    policies = op.create_table(
        f"{prefix}idempotency_policies",
        sa.Column("policy_id", _BIG, sa.Identity(), primary_key=True),
        sa.Column("policy_key", sa.Text, nullable=False, unique=True),
        sa.Column("source", sa.Text, nullable=False),
        sa.Column("content_type", sa.Text, nullable=False),
        sa.Column("conflict_action", sa.Text, nullable=False),
        sa.Column("update_fields", sa.Text),
        sa.Column("enabled", sa.Boolean, nullable=False, server_default=sa.true()),
        sa.Column("secondary_role", sa.Text, nullable=False, server_default="identity"),
        *(sa.CheckConstraint(rule, name=f"idempotency_policies_{name}") for name, rule in _POLICY_CHECKS.items()),
        schema=schema,
    )
    columns = ("policy_key", "source", "content_type", "conflict_action", "enabled", "secondary_role")
    op.bulk_insert(policies, [dict(zip(columns, policy, strict=True)) for policy in _POLICIES])
    op.create_table(
        f"{prefix}entries",
        sa.Column("entry_id", _BIG, sa.Identity(), primary_key=True),
        sa.Column("id", sa.Uuid().with_variant(sa.Text, "sqlite"), nullable=False, unique=True),
        sa.Column("created_at", sa.Text, nullable=False),
        sa.Column("updated_at", sa.Text, nullable=False),
        sa.Column("source", sa.Text, nullable=False),
        sa.Column("content_type", sa.Text),
        sa.Column("title", sa.Text),
        sa.Column("author", sa.Text),
        sa.Column("url", sa.Text),
        sa.Column("url_canonical", sa.Text),
        sa.Column("capture_text", sa.Text),
        sa.Column("clean_text", sa.Text),
        sa.Column("content_hash", sa.Text),
        sa.Column("external_ref", sa.Text),
        sa.Column("metadata", sa.Text, nullable=False, server_default="{}"),
        sa.Column(
            "idempotency_policy_id",
            sa.BigInteger,
            sa.ForeignKey(f"{within}{prefix}idempotency_policies.policy_id", ondelete="RESTRICT"),
        ),
        sa.Column("idempotency_key_primary", sa.Text),
        sa.Column("idempotency_key_secondary", sa.Text),
        schema=schema,
        sqlite_autoincrement=True,
    )
    for role in ("primary", "secondary"):
        key = f"idempotency_key_{role}"
        there = sa.text(f"{key} IS NOT NULL")
        op.create_index(
            f"idx_{prefix}entries_{role}",
            f"{prefix}entries",
            ["idempotency_policy_id", key],
            unique=True,
            schema=schema,
            postgresql_where=there,
            sqlite_where=there,
        )
