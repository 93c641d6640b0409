"""Ingest schemas, and which of the two is active: `pkm`, or `pkm_test` in test mode.

Both have the same tables. In PostgreSQL they are schemas of these names. In SQLite all tables are in one file and have
these names as prefixes, because a commit over several files is not atomic there.
"""

from __future__ import annotations

from dataclasses import dataclass

from onceward.errors import missing_extra

try:
    from sqlalchemy import text
except ModuleNotFoundError as error:
    raise missing_extra(error, __name__, "hub") from error

from onceward.core.json_text import refused
from onceward.hub.db.engine import Database, Transaction
from onceward.hub.db.lookup import Lookup
from onceward.hub.db.raw_sql import RawStatement
from onceward.hub.db.tables import SCHEMAS


@dataclass(frozen=True, slots=True)
class EntrySchema:
    """One of the two schemas. A request uses the same schema from beginning to end."""

    name: str

    def table(self, table: str, *, is_sqlite: bool) -> str:
        """Return the name of one of its tables for use in SQL."""
        return f"{self.name}_{table}" if is_sqlite else f"{self.name}.{table}"


PKM, PKM_TEST = (EntrySchema(name) for name in SCHEMAS)

_TEST_MODE = RawStatement("SELECT test_mode FROM ingest_mode")
_FIND_TEST_MODE = Lookup(
    _TEST_MODE,
    """
    SELECT asked.place, mode.test_mode
    FROM json_array_elements(CAST(:asked AS json)) WITH ORDINALITY AS asked(row, place) CROSS JOIN ingest_mode AS mode
    """,
)
_SET_TEST_MODE = text("UPDATE ingest_mode SET test_mode = :enabled")


def schema_named(name: str) -> EntrySchema:
    """Return the schema of this name; `InvalidInput` for an unknown name."""
    for schema in (PKM, PKM_TEST):
        if schema.name == name:
            return schema
    raise refused("schema", f"must be {PKM.name} or {PKM_TEST.name}")


def active_schema(tx: Transaction) -> EntrySchema:
    return PKM_TEST if test_mode(tx) else PKM


async def find_active_schema(database: Database) -> EntrySchema:
    """Look up the active schema, for a task of an event loop."""
    ((enabled,),) = await database.lookups.find(_FIND_TEST_MODE, {})
    return PKM_TEST if enabled else PKM


def test_mode(tx: Transaction) -> bool:
    """Return whether test mode is on. It is stored in the database, so all processes agree."""
    ((enabled,),) = _TEST_MODE.rows(tx)
    return bool(enabled)


def set_test_mode(tx: Transaction, enabled: bool) -> None:
    tx.execute(_SET_TEST_MODE, {"enabled": enabled})
