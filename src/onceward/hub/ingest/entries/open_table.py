"""Choice of the entry table for a batch: SQLite, PostgreSQL, or a dry run that only reads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from onceward.hub.db.engine import Transaction
from onceward.hub.ingest.entries.decision import Row
from onceward.hub.ingest.entries.policy import Policy
from onceward.hub.ingest.entries.postgres_table import PostgresTable
from onceward.hub.ingest.entries.schema import EntrySchema
from onceward.hub.ingest.entries.sqlite_table import SqliteTable
from onceward.hub.ingest.entries.table import EntryReader, LookupResult, new_rows


def table_of(tx: Transaction, schema: EntrySchema, policies: Iterable[Policy]) -> SqliteTable | PostgresTable:
    kind = SqliteTable if tx.dialect.name == "sqlite" else PostgresTable
    return kind(tx, schema, _hints(policies))


class DryTable:
    """An entry table that reads like another one and writes nothing. New entries get negative ids."""

    is_alone = True

    def __init__(self, table: EntryReader, policies: Iterable[Policy]) -> None:
        self._hint_policies = _hints(policies)
        self._table = table
        self._last = 0

    def take_turn(self) -> None: ...

    def lock_table(self) -> None: ...

    def find_and_insert(self, first: Sequence[Row], others: Sequence[Row]) -> LookupResult:
        found = self._table.find([*first, *others])
        new = []
        for row in new_rows(first, found, self._hint_policies):
            self._last -= 1
            new.append((self._last, *row[1:]))
        return LookupResult(found, new)

    def find(self, rows: Sequence[Row]) -> Sequence[Row]:
        return self._table.find(rows)

    def lock(self, _entry_ids: Iterable[int]) -> Sequence[Row]:
        raise AssertionError  # never called, because nothing is written

    def update(self, rows: Sequence[Row]) -> None: ...


def _hints(policies: Iterable[Policy]) -> frozenset[int]:
    return frozenset(policy.policy_id for policy in policies if policy.secondary_role == "hint")
