"""Entry table in SQLite. SQLite has one writer at a time, so this searches first and then inserts missing entries.

Statements and rows bypass SQLAlchemy's own: these cost more than the work itself.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence

from onceward.hub.db.engine import Transaction
from onceward.hub.ingest.entries.columns import COLUMNS, MUTABLE, POLICY_ID, PRIMARY, SECONDARY
from onceward.hub.ingest.entries.decision import POSITION, Row
from onceward.hub.ingest.entries.schema import EntrySchema
from onceward.hub.ingest.entries.table import ENTRY_ID, ID, LookupResult, new_rows

_POLICY_ID = POSITION[POLICY_ID]
_ALL = ", ".join(COLUMNS)

_FIND = """
    SELECT {columns} FROM {entries}
    WHERE idempotency_policy_id = ? AND {key} IN (SELECT value FROM json_each(?))
"""
_READ = "SELECT {columns} FROM {entries} WHERE entry_id IN (SELECT value FROM json_each(?))"
# The last id that was ever assigned, even if that entry was deleted.
_LAST = "SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name = ?), 0)"
_INSERT = "INSERT INTO {entries} ({columns}) VALUES ({places}) ON CONFLICT DO NOTHING"
_BEHIND = "SELECT entry_id FROM {entries} WHERE entry_id > ?"
_UPDATE = "UPDATE {entries} SET {assignments} WHERE entry_id = ?"
# Pages that do not fit into the cache are written early, and then again. A large batch with its events has about 4 MB.
_CACHE = "PRAGMA cache_size = -8192"

# If none of this many first entries exists, the batch is assumed to be new.
_SOME = 8


class SqliteTable:
    """Entry table under SQLite's write lock, held from the start of the transaction, so that rows read stay current."""

    is_alone = True

    def __init__(self, tx: Transaction, schema: EntrySchema, hint_policies: Collection[int]) -> None:
        self._tx = tx
        self._entries = schema.table("entries", is_sqlite=True)
        self._hint_policies = hint_policies

    def take_turn(self) -> None:
        self._tx.exec_driver_sql(_CACHE)

    def lock_table(self) -> None: ...

    def find_and_insert(self, first: Sequence[Row], others: Sequence[Row]) -> LookupResult:
        if others or len(first) <= _SOME or self.find(first[:_SOME]):
            found = self.find([*first, *others])
            return LookupResult(found, self._insert(new_rows(first, found, self._hint_policies)))
        # None of the first few exists, so probably none of the batch does. Entries that conflict existed after all.
        inserted = self._insert(first)
        if len(inserted) == len(first):
            return LookupResult([], inserted)
        done = {row[ID] for row in inserted}
        return LookupResult(self.find([row for row in first if row[ID] not in done]), inserted)

    def _insert(self, rows: Sequence[Row]) -> Sequence[Row]:
        """Insert the rows that do not conflict with another entry; return them as inserted."""
        if not rows:
            return []
        ((last,),) = self._rows(_LAST, (self._entries,))
        numbered = [(number, *row[1:]) for number, row in enumerate(rows, last + 1)]
        statement = _INSERT.format(entries=self._entries, columns=_ALL, places=", ".join("?" * len(COLUMNS)))
        if self._tx.exec_driver_sql(statement, numbered).rowcount == len(rows):
            return numbered
        there = {entry_id for (entry_id,) in self._rows(_BEHIND.format(entries=self._entries), (last,))}
        return [row for row in numbered if row[ENTRY_ID] in there]

    def find(self, rows: Sequence[Row]) -> Sequence[Row]:
        found: dict[int, Row] = {}
        for name in (PRIMARY, SECONDARY):
            place = POSITION[name]
            # Skip secondary keys of entries that were found by their primary key, which are most of them.
            there = {(row[_POLICY_ID], row[place]) for row in found.values()}
            keys: dict[int, list[str]] = {}
            for row in rows:
                policy_id, key = row[_POLICY_ID], row[place]
                if key is not None and (policy_id, key) not in there:
                    keys.setdefault(policy_id, []).append(key)
            statement = _FIND.format(columns=_ALL, entries=self._entries, key=name)
            for policy_id, some in keys.items():
                found.update((row[ENTRY_ID], row) for row in self._rows(statement, (policy_id, json.dumps(some))))
        return list(found.values())

    def read(self, entry_ids: Sequence[int]) -> Sequence[Row]:
        return self._rows(_READ.format(columns=_ALL, entries=self._entries), (json.dumps(entry_ids),))

    def lock(self, _entry_ids: Iterable[int]) -> Sequence[Row]:
        raise AssertionError  # never called, because this is the only writer

    def update(self, rows: Sequence[Row]) -> None:
        assignments = ", ".join(f"{name} = ?" for name in MUTABLE)
        places = [POSITION[name] for name in MUTABLE]
        self._tx.exec_driver_sql(
            _UPDATE.format(entries=self._entries, assignments=assignments),
            [(*(row[place] for place in places), row[ENTRY_ID]) for row in rows],
        )

    def _rows(self, statement: str, values: tuple[object, ...]) -> Sequence[Row]:
        result = self._tx.exec_driver_sql(statement, values)
        # Plain tuples from the driver, without SQLAlchemy's rows.
        rows = result.cursor.fetchall()
        result.close()
        return rows
