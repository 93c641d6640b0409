"""The ledger's tables on SQLite: made where they are missing, and brought from schema 1 to schema 2."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from importlib import resources

from onceward.store import OLDEST_SCHEMA, SCHEMA_VERSION, Schema


def ensure_schema(db: sqlite3.Connection, lock: Callable[[], object]) -> None:
    """Look first; create or upgrade under the write lock, which `lock` takes: another process may be doing the same."""
    schema = _schema(db)
    schema.check()
    if schema.is_current:
        return
    lock()
    try:
        schema = _schema(db)
        schema.check()
        if not schema.is_current:
            for script in ("sqlite.sql", "sqlite_schema2.sql") if schema.upgraded_to == 0 else ("sqlite_schema2.sql",):
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
    # Columns by position: schema 1 has three of them.
    _, version, _, *newer = db.execute("SELECT * FROM platform_idempotency_meta").fetchone()
    return Schema.stored(version, *newer)


def _statements(script: str) -> Iterator[str]:
    """The statements of a script, one by one: `executescript` would end the transaction it runs in."""
    statement = ""
    for line in resources.files("onceward.store").joinpath(script).read_text("utf-8").splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
