"""Entry table in SQLite. SQLite has one writer at a time, so no other entries appear between two statements.

Statements and rows bypass SQLAlchemy's own: these cost more than the work itself.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Collection, Iterable, Sequence

from onceward.hub.db.engine import Transaction
from onceward.hub.db.raw_sql import MultiRowStatement, RawStatement, Values
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
_INSERT = "INSERT INTO {entries} ({columns}) VALUES {rows} ON CONFLICT DO NOTHING"
_BEHIND = "SELECT json_group_array(entry_id) FROM {entries} WHERE entry_id > ?"
_UPDATE = "UPDATE {entries} SET {assignments} FROM (VALUES {rows}) AS new WHERE entry_id = new.column1"
_ASSIGNMENTS = ", ".join(f"{name} = new.column{POSITION[name] + 1}" for name in MUTABLE)
# Pages that do not fit into the cache are written early, and then again. A large batch with its events has about 4 MB.
_CACHE = RawStatement("PRAGMA cache_size = -8192")

# At most this many entries are inserted without a search before: a refused row costs little.
_FEW = 128
# If none of this many first entries of a larger batch exists, the batch is assumed to be new.
_SOME = 8


@functools.cache
def _statement(statement: str, entries: str, key: str = "") -> RawStatement:
    return RawStatement(statement.format(entries=entries, columns=_ALL, key=key))


@functools.cache
def _write_statement(statement: str, entries: str) -> MultiRowStatement:
    named = statement.format(entries=entries, columns=_ALL, assignments=_ASSIGNMENTS, rows="{rows}")
    return MultiRowStatement(named, len(COLUMNS))


class SqliteTable:
    """Entry table under SQLite's write lock, held from the start of the transaction, so that rows read stay current."""

    is_alone = True

    def __init__(self, tx: Transaction, schema: EntrySchema, hint_policies: Collection[int]) -> None:
        self._tx = tx
        self._entries = schema.table("entries", is_sqlite=True)
        self._hint_policies = hint_policies

    def take_turn(self) -> None:
        _CACHE.rows(self._tx)

    def lock_table(self) -> None: ...

    def find_and_insert(self, first: Sequence[Row], others: Sequence[Row]) -> LookupResult:
        if len(first) > _FEW and (others or self.find(first[:_SOME])):
            found = self.find([*first, *others])
            return LookupResult(found, self._insert(new_rows(first, found, self._hint_policies)))
        # Probably all are new. Entries that conflict existed after all.
        inserted = self._insert(first)
        if len(inserted) == len(first) and not others:
            return LookupResult([], inserted)
        done = {row[ID] for row in inserted}
        return LookupResult(self.find([row for row in (*first, *others) if row[ID] not in done]), inserted)

    def _insert(self, rows: Sequence[Row]) -> Sequence[Row]:
        """Insert the rows that do not conflict with another entry; return them as inserted."""
        if not rows:
            return []
        ((last,),) = self._rows(_LAST, (self._entries,))
        numbered = [(number, *row[1:]) for number, row in enumerate(rows, last + 1)]
        if _write_statement(_INSERT, self._entries).count(self._tx, numbered) == len(rows):
            return numbered
        ((there,),) = self._rows(_BEHIND, (last,))
        there = set(json.loads(there))
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
            for policy_id, some in keys.items():
                values = (policy_id, json.dumps(some))
                found.update((row[ENTRY_ID], row) for row in self._rows(_FIND, values, key=name))
        return list(found.values())

    def read(self, entry_ids: Sequence[int]) -> Sequence[Row]:
        return self._rows(_READ, (json.dumps(entry_ids),))

    def lock(self, _entry_ids: Iterable[int]) -> Sequence[Row]:
        raise AssertionError  # never called, because this is the only writer

    def update(self, rows: Sequence[Row]) -> None:
        _write_statement(_UPDATE, self._entries).count(self._tx, rows)

    def _rows(self, statement: str, values: Values, key: str = "") -> Sequence[Row]:
        # The driver's rows are plain tuples.
        return _statement(statement, self._entries, key).rows(self._tx, values)  # type: ignore[return-value]
