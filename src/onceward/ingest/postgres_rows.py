"""Entries in PostgreSQL. One statement looks and inserts. Others insert at the same moment, so an entry may be neither
inserted nor found; the next look finds it.

Keys are looked up by scalar subqueries: whatever the planner knows of the table, each goes through its index.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import TextClause, text

from onceward.db.engine import Transaction
from onceward.ingest.columns import ASSIGNED, COLUMNS, MUTABLE, POLICY_ID, PRIMARY, SECONDARY
from onceward.ingest.decide import POSITION, Row
from onceward.ingest.schema import Schema
from onceward.ingest.wanted import ENTRY_ID, ID, Looked, Wanted

_SECONDARY = POSITION[SECONDARY]

_LOOK = """
    WITH sent AS MATERIALIZED (
        SELECT k.*,
            (SELECT e.entry_id FROM {entries} AS e
             WHERE e.idempotency_policy_id = k.policy_id AND e.idempotency_key_primary = k.key_primary) AS by_primary,
            (SELECT e.entry_id FROM {entries} AS e
             WHERE e.idempotency_policy_id = k.policy_id AND e.idempotency_key_secondary = k.key_secondary
            ) AS by_secondary
        FROM unnest(
            CAST(:idempotency_policy_id AS bigint[]), CAST(:idempotency_key_primary AS text[]),
            CAST(:idempotency_key_secondary AS text[]), CAST(:is_hint AS boolean[]), CAST(:is_first AS boolean[])
        ) WITH ORDINALITY AS k(policy_id, key_primary, key_secondary, is_hint, is_first, place)
    ),
    -- Everybody inserts in the order of keys, so that two batches wait for each other in one direction only.
    written AS (
        INSERT INTO {entries} ({columns})
        SELECT CAST(c.id AS uuid), {content}, s.policy_id, s.key_primary,
            CASE WHEN s.by_secondary IS NULL THEN s.key_secondary END
        FROM sent AS s
        JOIN unnest({arrays}) WITH ORDINALITY AS c({names}, place) ON c.place = s.place
        WHERE s.is_first AND s.by_primary IS NULL AND (s.by_secondary IS NULL OR s.is_hint)
        ORDER BY s.policy_id, s.key_primary, s.key_secondary
        ON CONFLICT DO NOTHING
        RETURNING entry_id, id, idempotency_key_secondary
    )
    SELECT true AS is_new, entry_id, CAST(id AS text), {nulls}, idempotency_key_secondary FROM written
    UNION ALL
    SELECT false, {shown} FROM {entries}
    WHERE entry_id IN (SELECT by_primary FROM sent UNION ALL SELECT by_secondary FROM sent)
"""
_FIND = """
    SELECT {shown} FROM {entries} WHERE entry_id IN (
        SELECT e.entry_id FROM unnest(CAST(:policy_ids AS bigint[]), CAST(:primaries AS text[])) AS k(policy_id, key),
        LATERAL (SELECT entry_id FROM {entries} AS e
                 WHERE e.idempotency_policy_id = k.policy_id AND e.idempotency_key_primary = k.key) AS e
        UNION
        SELECT e.entry_id FROM unnest(CAST(:policy_ids AS bigint[]), CAST(:secondaries AS text[])) AS k(policy_id, key),
        LATERAL (SELECT entry_id FROM {entries} AS e
                 WHERE e.idempotency_policy_id = k.policy_id AND e.idempotency_key_secondary = k.key) AS e
    )
"""
_LOCK = """
    SELECT {shown} FROM {entries} WHERE entry_id = ANY(:entry_ids) ORDER BY entry_id FOR NO KEY UPDATE
"""
_READ = "SELECT {shown} FROM {entries} WHERE entry_id = ANY(:entry_ids)"
_UPDATE = """
    UPDATE {entries} AS e SET {assignments}
    FROM unnest(CAST(:entry_id AS bigint[]), {arrays}) AS u(entry_id, {names}) WHERE e.entry_id = u.entry_id
"""
_SHOWN = ", ".join("CAST(id AS text)" if name == "id" else name for name in COLUMNS)


def _arrays(names: Iterable[str]) -> str:
    return ", ".join(f"CAST(:{name} AS text[])" for name in names)


@functools.cache
def _postgres(statement: str, entries: str) -> TextClause:
    content = COLUMNS[len(ASSIGNED) - 2 : -3]
    return text(
        statement.format(
            entries=entries,
            columns=", ".join(COLUMNS[1:]),
            content=", ".join(f"c.{name}" for name in content),
            arrays=_arrays(MUTABLE if "UPDATE {entries}" in statement else ("id", *content)),
            names=", ".join(MUTABLE if "UPDATE {entries}" in statement else ("id", *content)),
            nulls=", ".join("NULL" for _ in COLUMNS[3:]),
            shown=_SHOWN,
            assignments=", ".join(f"{name} = u.{name}" for name in MUTABLE),
        )
    )


class PostgresRows:
    """Others write at the same time; a row stays as it is from the moment at which it is locked."""

    is_alone = False

    def __init__(self, tx: Transaction, schema: Schema) -> None:
        self._tx = tx
        self._entries = schema.table("entries", is_sqlite=False)

    def find(self, wanted: Sequence[Wanted]) -> list[Row]:
        names = {"policy_ids": POSITION[POLICY_ID], "primaries": POSITION[PRIMARY], "secondaries": _SECONDARY}
        arrays = {name: [one.row[place] for one in wanted] for name, place in names.items()}
        return [tuple(row) for row in self._tx.execute(_postgres(_FIND, self._entries), arrays)]

    def look_and_insert(self, wanted: Sequence[Wanted]) -> Looked:
        values: dict[str, Any] = dict(zip(COLUMNS, zip(*(one.row for one in wanted), strict=True), strict=True))
        arrays = {name: list(column) for name, column in values.items() if name != "entry_id"}
        arrays["is_hint"] = [one.is_hint for one in wanted]
        arrays["is_first"] = [one.is_first for one in wanted]
        sent = {one.row[ID]: one.row for one in wanted}
        looked = Looked([], [])
        for is_new, *row in self._tx.execute(_postgres(_LOOK, self._entries), arrays):
            if is_new:
                looked.inserted.append((row[ENTRY_ID], *sent[row[ID]][1:_SECONDARY], row[_SECONDARY]))
            else:
                looked.found.append(tuple(row))
        return looked

    def read(self, entry_ids: Sequence[int]) -> list[Row]:
        statement = _postgres(_READ, self._entries)
        return [tuple(row) for row in self._tx.execute(statement, {"entry_ids": list(entry_ids)})]

    def lock(self, entry_ids: Iterable[int]) -> list[Row]:
        statement = _postgres(_LOCK, self._entries)
        return [tuple(row) for row in self._tx.execute(statement, {"entry_ids": sorted(entry_ids)})]

    def update(self, rows: Sequence[Row]) -> None:
        arrays = {name: [row[POSITION[name]] for row in rows] for name in ("entry_id", *MUTABLE)}
        self._tx.execute(_postgres(_UPDATE, self._entries), arrays)
