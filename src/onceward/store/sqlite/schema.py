"""The ledger's tables on SQLite: create them if they are missing, and upgrade schema 1 to schema 2."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from importlib import resources

from onceward.store import OLDEST_SCHEMA, SCHEMA_VERSION, Schema


def ensure_schema(db: sqlite3.Connection, lock: Callable[[], object]) -> None:
    """Create or upgrade the tables if needed, under the write lock that `lock` takes.

    The schema is read again under the lock, because another process may have done the same.
    """
    schema = read_schema(db)
    schema.check()
    if schema.is_current:
        return
    lock()
    try:
        schema = read_schema(db)
        schema.check()
        if not schema.is_current:
            for script in ("schema.sql", "schema_2.sql") if schema.upgraded_to == 0 else ("schema_2.sql",):
                for statement in _statements(script):
                    db.execute(statement)
            db.execute(
                "INSERT INTO platform_idempotency_meta (only, schema_version, version_floor, readable_from, upgraded_to)"
                " VALUES (1, ?, 0, ?, ?) ON CONFLICT (only) DO UPDATE"
                " SET readable_from = excluded.readable_from, upgraded_to = excluded.upgraded_to",
                (OLDEST_SCHEMA, OLDEST_SCHEMA, SCHEMA_VERSION),
            )
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


# Keep out processes of schema 1, and create the index of entries that never expire, which few ledgers have.
REQUIRE_NEW_SCHEMA = (
    (
        f"UPDATE platform_idempotency_meta SET schema_version = {SCHEMA_VERSION}, readable_from = {SCHEMA_VERSION}"  # noqa: S608
        f" WHERE readable_from < {SCHEMA_VERSION}"
    ),
    (
        "CREATE INDEX IF NOT EXISTS idx_idempotency_keys_drop ON platform_idempotency_keys (refuse_until)"
        " WHERE expires_at IS NULL AND refuse_until IS NOT NULL"
    ),
)


def require_new_schema(db: sqlite3.Connection) -> None:
    """Prepare for the first write that processes of schema 1 would damage (`needs_new_schema`)."""
    for statement in REQUIRE_NEW_SCHEMA:
        db.execute(statement)


def has_drop_index(db: sqlite3.Connection) -> bool:
    """Return whether there may be entries whose results are dropped although they never expire."""
    return db.execute("SELECT 1 FROM sqlite_master WHERE name = 'idx_idempotency_keys_drop'").fetchone() is not None


def read_schema(db: sqlite3.Connection) -> Schema:
    """Return the schema numbers of a file, without changing anything."""
    table = db.execute("SELECT 1 FROM sqlite_master WHERE name = 'platform_idempotency_meta'").fetchone()
    if table is None:
        return Schema()
    # By position, because schema 1 has only three columns.
    _, version, _, *newer = db.execute("SELECT * FROM platform_idempotency_meta").fetchone()
    return Schema.stored(version, *newer)


def _statements(script: str) -> Iterator[str]:
    """Yield the statements of a script. `executescript` would commit the transaction that is open."""
    statement = ""
    for line in resources.files("onceward.store.sqlite").joinpath(script).read_text("utf-8").splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
