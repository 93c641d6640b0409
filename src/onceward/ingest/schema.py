"""The two schemas, and which of them is active: `pkm`, or `pkm_test` while the test mode is on.

Both have the same tables. PostgreSQL has them in schemas of these names; SQLite has all of them in its one file, told
apart by a prefix, because a commit over several files is not atomic there.
"""

from __future__ import annotations

from dataclasses import dataclass

from onceward.errors import missing_extra

try:
    from sqlalchemy import text
except ModuleNotFoundError as error:
    raise missing_extra(error, __name__, "hub") from error

from onceward.core.text import refused
from onceward.db.engine import Transaction
from onceward.db.tables import SCHEMAS


@dataclass(frozen=True, slots=True)
class Schema:
    """One of the two; a request works in one of them from its beginning to its end."""

    name: str

    def table(self, table: str, *, is_sqlite: bool) -> str:
        """The name of one of its tables, as a statement has it."""
        return f"{self.name}_{table}" if is_sqlite else f"{self.name}.{table}"


PKM, PKM_TEST = (Schema(name) for name in SCHEMAS)

_TEST_MODE = text("SELECT test_mode FROM ingest_mode")
_SET_TEST_MODE = text("UPDATE ingest_mode SET test_mode = :enabled")


def schema_named(name: str) -> Schema:
    """The schema of this name; `InvalidInput` when there is none."""
    for schema in (PKM, PKM_TEST):
        if schema.name == name:
            return schema
    raise refused("schema", f"must be {PKM.name} or {PKM_TEST.name}")


def active_schema(tx: Transaction) -> Schema:
    return PKM_TEST if test_mode(tx) else PKM


def test_mode(tx: Transaction) -> bool:
    """Whether entries go to the schema for tests; every process sees the same."""
    return bool(tx.execute(_TEST_MODE).scalar_one())


def set_test_mode(tx: Transaction, enabled: bool) -> None:
    tx.execute(_SET_TEST_MODE, {"enabled": enabled})
