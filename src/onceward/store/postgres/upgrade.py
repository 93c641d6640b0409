"""Creation and upgrade of the ledger's tables on PostgreSQL; safe if several processes open the store at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import resources
from typing import cast

from onceward.store import OLDEST_SCHEMA, SCHEMA_VERSION, Schema
from onceward.store.postgres.driver import OPEN_SECONDS, LockNotAvailable, ResultRow, TimeoutConnection

# A change of the tables waits this long for its lock. Other sessions queue behind it, so it then gives up and retries.
_TABLE_LOCK_SECONDS = 1
# The advisory locks: the letters "once", with 1 for schema changes and 2 (inside the functions) for insert and purge.
_LOCKS = 0x6F6E6365

# A query on a catalog makes the session read the changes of others first. Without it, a session that waited for the
# lock would still take the tables for missing.
_EXISTS = "SELECT to_regclass('platform_idempotency_meta') IS NOT NULL FROM pg_catalog.pg_class LIMIT 1"
# Through JSON, because the tables of schema 1 do not have all of these columns.
_SCHEMA = """
SELECT m.schema_version, (to_jsonb(m)->>'readable_from')::integer, (to_jsonb(m)->>'upgraded_to')::integer,
       to_regproc('onceward_commit_v7') IS NOT NULL
FROM platform_idempotency_meta m
"""


def ensure_tables(connection: TimeoutConnection) -> None:
    """Create or upgrade the tables if needed. Raises `SchemaTooNew` if only newer versions may use them."""
    schema, complete = _schema(connection)
    schema.check()
    if not complete or not schema.is_current:
        _retry_while_locked(lambda: _create(connection))


def _create(connection: TimeoutConnection) -> None:
    """Create or upgrade the tables in one transaction, under an advisory lock that ends with it.

    At READ COMMITTED, so that each statement after the lock sees what its last holder has committed.
    """
    with connection.transaction():
        connection.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
        connection.execute(f"SET LOCAL lock_timeout = '{OPEN_SECONDS}s'")
        connection.execute("SELECT pg_advisory_xact_lock(%s, 1)", (_LOCKS,))
        schema, complete = _schema(connection)
        schema.check()
        if not complete or not schema.is_current:
            _upgrade(connection, schema, complete=complete)


def _upgrade(connection: TimeoutConnection, schema: Schema, *, complete: bool) -> None:
    connection.execute(f"SET LOCAL lock_timeout = '{_TABLE_LOCK_SECONDS}s'")
    if schema.upgraded_to == 0:
        connection.execute(_script("schema.sql"))
        connection.execute("INSERT INTO platform_idempotency_meta VALUES (1, %s)", (OLDEST_SCHEMA,))
    if not schema.is_current:
        connection.execute(_script("schema_2.sql"))
        connection.execute(
            "UPDATE platform_idempotency_meta SET readable_from = %s, upgraded_to = %s",
            (max(schema.readable_from, OLDEST_SCHEMA), SCHEMA_VERSION),
        )
    if not complete:
        connection.execute(_script("commit.sql"))


def create_tables(connection: TimeoutConnection) -> None:
    """Create the tables in an empty database. `connection` may be one that only records the statements."""
    with connection.transaction():
        _upgrade(connection, Schema(), complete=False)


def ledger_script() -> str:
    """Return the SQL script that creates the tables in an empty database, as one transaction.

    It has the statements that the store itself runs.
    """
    written = _RecordedStatements()
    create_tables(cast("TimeoutConnection", written))
    return "\n".join(written.statements)


class _RecordedStatements:
    """A replacement for a connection that records the statements instead of running them."""

    def __init__(self) -> None:
        self.statements: list[str] = []

    @contextmanager
    def transaction(self) -> Iterator[None]:
        self.statements.append("BEGIN;")
        yield
        self.statements.append("COMMIT;")

    def execute(self, statement: str | bytes, values: Sequence[int] = ()) -> None:
        text = statement.decode() if isinstance(statement, bytes) else statement
        for value in values:
            text = text.replace("%s", str(int(value)), 1)
        self.statements.append(text.strip().rstrip(";") + ";")


def _retry_while_locked(step: Callable[[], None]) -> None:
    """Repeat a step that did not get a table lock. Each try is short, because other sessions queue behind it."""
    deadline = time.monotonic() + OPEN_SECONDS
    while True:
        try:
            return step()
        except LockNotAvailable:
            if time.monotonic() > deadline:
                raise


def _script(name: str) -> bytes:
    return resources.files("onceward.store.postgres").joinpath(name).read_bytes()


def _schema(connection: TimeoutConnection) -> tuple[Schema, bool]:
    """Return the schema numbers, and whether the commit function exists."""
    if not only(connection.execute(_EXISTS).fetchone()):
        return Schema(), False
    row = connection.execute(_SCHEMA).fetchone()
    if row is None:
        raise AssertionError("the table platform_idempotency_meta is empty")
    return Schema.stored(*row[:3]), row[3]


def only(row: ResultRow | None) -> int:
    """Return the value of a query for one value."""
    if row is None:
        raise AssertionError("a query for one value returned no row")
    value: int = row[0]
    return value
