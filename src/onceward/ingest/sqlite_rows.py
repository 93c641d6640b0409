"""Entries in SQLite. Its writer is alone, so it looks first and inserts what is not there.

Parameters are positions: these statements bypass SQLAlchemy's own, which cost more than the work itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from onceward.db.engine import Transaction
from onceward.ingest.columns import COLUMNS, MUTABLE, POLICY_ID, PRIMARY, SECONDARY
from onceward.ingest.decide import POSITION, Row
from onceward.ingest.schema import Schema
from onceward.ingest.wanted import ENTRY_ID, Looked, Wanted, new_rows

_POLICY_ID, _PRIMARY, _SECONDARY = POSITION[POLICY_ID], POSITION[PRIMARY], POSITION[SECONDARY]

_FIND = """
    SELECT {columns} FROM {entries}
    WHERE idempotency_policy_id = ? AND {key} IN (SELECT value FROM json_each(?))
"""
_READ = "SELECT {columns} FROM {entries} WHERE entry_id IN (SELECT value FROM json_each(?))"
_SEQUENCE = "SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name = ?), 0)"
_INSERT = "INSERT INTO {entries} ({columns}) VALUES ({places})"
_UPDATE = "UPDATE {entries} SET {assignments} WHERE entry_id = ?"


class SqliteRows:
    """The write lock is held from the beginning of the transaction: what was looked at stays."""

    is_alone = True

    def __init__(self, tx: Transaction, schema: Schema) -> None:
        self._tx = tx
        self._entries = schema.table("entries", is_sqlite=True)

    def find(self, wanted: Sequence[Wanted]) -> list[Row]:
        found: dict[int, Row] = {}
        for name, place in ((PRIMARY, _PRIMARY), (SECONDARY, _SECONDARY)):
            keys: dict[int, list[str]] = {}
            for one in wanted:
                if one.row[place] is not None:
                    keys.setdefault(one.row[_POLICY_ID], []).append(one.row[place])
            statement = _FIND.format(columns=", ".join(COLUMNS), entries=self._entries, key=name)
            for policy_id, some in keys.items():
                for row in self._tx.exec_driver_sql(statement, (policy_id, json.dumps(some))):
                    found[row[ENTRY_ID]] = tuple(row)
        return list(found.values())

    def look_and_insert(self, wanted: Sequence[Wanted]) -> Looked:
        found = self.find(wanted)
        new = new_rows(wanted, found)
        if new:
            last = self._tx.exec_driver_sql(_SEQUENCE, (self._entries,)).scalar_one()
            new = [(last + number, *row[1:]) for number, row in enumerate(new, 1)]
            statement = _INSERT.format(
                entries=self._entries, columns=", ".join(COLUMNS), places=", ".join("?" * len(COLUMNS))
            )
            self._tx.exec_driver_sql(statement, new)
        return Looked(found, new)

    def read(self, entry_ids: Sequence[int]) -> list[Row]:
        statement = _READ.format(columns=", ".join(COLUMNS), entries=self._entries)
        return [tuple(row) for row in self._tx.exec_driver_sql(statement, (json.dumps(entry_ids),))]

    def lock(self, _entry_ids: Iterable[int]) -> list[Row]:
        raise AssertionError  # nobody else writes, so nobody asks

    def update(self, rows: Sequence[Row]) -> None:
        assignments = ", ".join(f"{name} = ?" for name in MUTABLE)
        statement = _UPDATE.format(entries=self._entries, assignments=assignments)
        places = [POSITION[name] for name in MUTABLE]
        self._tx.exec_driver_sql(statement, [(*(row[place] for place in places), row[ENTRY_ID]) for row in rows])
