"""The table of entries for a batch: on the database at hand, or looked at only."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from onceward.db.engine import Transaction
from onceward.ingest.decide import Row
from onceward.ingest.policy import Policy
from onceward.ingest.postgres_table import PostgresTable
from onceward.ingest.schema import Schema
from onceward.ingest.sqlite_table import SqliteTable
from onceward.ingest.table import EntryTable, Looked, new_rows


def table_of(tx: Transaction, schema: Schema, policies: Iterable[Policy]) -> EntryTable:
    return _table(tx, schema, _hints(policies))


class DryTable:
    """Looks as the others do and writes nothing: what would be inserted gets an id that no entry has."""

    is_alone = True

    def __init__(self, tx: Transaction, schema: Schema, policies: Iterable[Policy]) -> None:
        self._hint_policies = _hints(policies)
        self._table = _table(tx, schema, self._hint_policies)
        self._last = 0

    def take_turn(self) -> None: ...

    def keep_others_away(self) -> None: ...

    def look_and_insert(self, first: Sequence[Row], others: Sequence[Row]) -> Looked:
        found = self._table.find([*first, *others])
        new = []
        for row in new_rows(first, found, self._hint_policies):
            self._last -= 1
            new.append((self._last, *row[1:]))
        return Looked(found, new)

    def read(self, entry_ids: Sequence[int]) -> Sequence[Row]:
        return self._table.read(entry_ids)

    def lock(self, _entry_ids: Iterable[int]) -> Sequence[Row]:
        raise AssertionError  # nothing is written, so nobody asks

    def update(self, rows: Sequence[Row]) -> None: ...


def _table(tx: Transaction, schema: Schema, hint_policies: frozenset[int]) -> SqliteTable | PostgresTable:
    kind = SqliteTable if tx.dialect.name == "sqlite" else PostgresTable
    return kind(tx, schema, hint_policies)


def _hints(policies: Iterable[Policy]) -> frozenset[int]:
    return frozenset(policy.policy_id for policy in policies if policy.secondary_role == "hint")
