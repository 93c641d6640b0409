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
    schema = _schema(db)
    schema.check()
    if schema.is_current:
        return
    lock()
    try:
        schema = _schema(db)
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


def _schema(db: sqlite3.Connection) -> Schema:
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
