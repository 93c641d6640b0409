"""The entries of a schema, for a batch: on the database at hand, or looked at only."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from onceward.db.engine import Transaction
from onceward.ingest.decide import Row
from onceward.ingest.postgres_rows import PostgresRows
from onceward.ingest.schema import Schema
from onceward.ingest.sqlite_rows import SqliteRows
from onceward.ingest.wanted import Looked, Rows, Wanted, new_rows


def rows_of(tx: Transaction, schema: Schema) -> Rows:
    return SqliteRows(tx, schema) if tx.dialect.name == "sqlite" else PostgresRows(tx, schema)


class DryRows:
    """Looks as the others do and writes nothing: what would be inserted gets an id that no entry has."""

    is_alone = True

    def __init__(self, tx: Transaction, schema: Schema) -> None:
        self._rows = rows_of(tx, schema)
        self._last = 0

    def find(self, wanted: Sequence[Wanted]) -> list[Row]:
        return self._rows.find(wanted)

    def look_and_insert(self, wanted: Sequence[Wanted]) -> Looked:
        found = self.find(wanted)
        new = []
        for row in new_rows(wanted, found):
            self._last -= 1
            new.append((self._last, *row[1:]))
        return Looked(found, new)

    def read(self, entry_ids: Sequence[int]) -> list[Row]:
        return self._rows.read(entry_ids)

    def lock(self, _entry_ids: Iterable[int]) -> list[Row]:
        raise AssertionError  # nothing is written, so nobody asks

    def update(self, rows: Sequence[Row]) -> None: ...
