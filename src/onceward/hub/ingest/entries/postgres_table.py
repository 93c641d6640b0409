"""Entry table in PostgreSQL. One statement searches and inserts.

Other transactions insert at the same time, so an entry may be neither inserted nor found; the next round finds it.

Entries are looked up one by one, by subqueries that the planner cannot turn into a join: a plan that was cached while
the table was small would later read the whole table for each batch. Columns are sent as arrays in binary form (`%b`),
because the driver takes five times as long to send them as text.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from onceward.hub.db.engine import Transaction
from onceward.hub.ingest.entries.columns import CONTENT, MUTABLE, POLICY_ID, PRIMARY, SECONDARY
from onceward.hub.ingest.entries.decision import POSITION, Row
from onceward.hub.ingest.entries.schema import EntrySchema
from onceward.hub.ingest.entries.table import ENTRY_ID, ID, LookupResult

_POLICY_ID, _PRIMARY, _SECONDARY = POSITION[POLICY_ID], POSITION[PRIMARY], POSITION[SECONDARY]

# Batches of a schema run one after the other. Two batches with common entries could deadlock, because they insert in the
# order of their items. The writer's batches of single entries do not wait here: they insert in the order of their keys,
# and conflict with others only by keys that are new in both.
_TURN = "SELECT pg_advisory_xact_lock(7331006, hashtext(%(entries)s))"
# This mode does not block readers.
_LOCK_TABLE = "LOCK TABLE {entries} IN SHARE ROW EXCLUSIVE MODE"
# For each entry sent, in order: the ids of the stored entries that its keys find.
_SENT = """
    SELECT k.*,
        (SELECT e.entry_id FROM {entries} AS e
         WHERE e.idempotency_policy_id = k.policy_id AND e.idempotency_key_primary = k.key_primary) AS by_primary,
        (SELECT e.entry_id FROM {entries} AS e
         WHERE e.idempotency_policy_id = k.policy_id AND e.idempotency_key_secondary = k.key_secondary) AS by_secondary
    FROM unnest(CAST(%(policy_ids)b AS bigint[]), CAST(%(primaries)b AS text[]), CAST(%(secondaries)b AS text[]))
        WITH ORDINALITY AS k(policy_id, key_primary, key_secondary, place)
"""
_SHOWN = """
    entry_id, CAST(id AS text), created_at, updated_at, source, content_type, title, author, url, url_canonical,
    capture_text, clean_text, content_hash, external_ref, metadata,
    idempotency_policy_id, idempotency_key_primary, idempotency_key_secondary
"""
_FIND = """
    WITH sent AS MATERIALIZED ({sent})
    SELECT e.* FROM (SELECT by_primary AS entry_id FROM sent UNION SELECT by_secondary FROM sent) AS there,
        LATERAL (SELECT {shown} FROM {entries} WHERE entry_id = there.entry_id OFFSET 0) AS e
"""
# New rows are returned without the columns that the client has just sent.
_FIND_AND_INSERT = """
    WITH sent AS MATERIALIZED ({sent}),
    written AS (
        INSERT INTO {entries} (
            id, created_at, updated_at, source, content_type, title, author, url, url_canonical,
            capture_text, clean_text, content_hash, external_ref, metadata,
            idempotency_policy_id, idempotency_key_primary, idempotency_key_secondary
        )
        SELECT CAST(c.id AS uuid), %(at)s, %(at)s, c.source, c.content_type, c.title, c.author, c.url, c.url_canonical,
            c.capture_text, c.clean_text, c.content_hash, c.external_ref, c.metadata,
            s.policy_id, s.key_primary, CASE WHEN s.by_secondary IS NULL THEN s.key_secondary END
        FROM sent AS s
        JOIN unnest(
            CAST(%(id)b AS text[]), CAST(%(source)b AS text[]), CAST(%(content_type)b AS text[]), CAST(%(title)b AS text[]),
            CAST(%(author)b AS text[]), CAST(%(url)b AS text[]), CAST(%(url_canonical)b AS text[]),
            CAST(%(capture_text)b AS text[]), CAST(%(clean_text)b AS text[]), CAST(%(content_hash)b AS text[]),
            CAST(%(external_ref)b AS text[]), CAST(%(metadata)b AS text[])
        ) WITH ORDINALITY AS c(
            id, source, content_type, title, author, url, url_canonical,
            capture_text, clean_text, content_hash, external_ref, metadata, place
        ) ON c.place = s.place
        WHERE s.by_primary IS NULL AND (s.by_secondary IS NULL OR s.policy_id = ANY(CAST(%(hint_policies)b AS bigint[])))
        ORDER BY s.place
        ON CONFLICT DO NOTHING
        RETURNING entry_id, id, idempotency_key_secondary
    )
    SELECT entry_id, CAST(id AS text), NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
        NULL, NULL, idempotency_key_secondary
    FROM written
    UNION ALL
    SELECT e.* FROM (SELECT by_primary AS entry_id FROM sent UNION SELECT by_secondary FROM sent) AS there,
        LATERAL (SELECT {shown} FROM {entries} WHERE entry_id = there.entry_id OFFSET 0) AS e
"""
_READ = """
    SELECT e.* FROM unnest(CAST(%(entry_ids)b AS bigint[])) AS there(entry_id),
        LATERAL (SELECT {shown} FROM {entries} WHERE entry_id = there.entry_id OFFSET 0) AS e
"""
# Rows are locked in the order of the array. All transactions use the same order, so they cannot deadlock.
_LOCK = """
    SELECT e.* FROM unnest(CAST(%(entry_ids)b AS bigint[])) AS there(entry_id),
        LATERAL (SELECT {shown} FROM {entries} WHERE entry_id = there.entry_id FOR NO KEY UPDATE) AS e
"""
_UPDATE = """
    UPDATE {entries} AS e
    SET updated_at = u.updated_at, source = u.source, content_type = u.content_type, title = u.title,
        author = u.author, url = u.url, url_canonical = u.url_canonical, capture_text = u.capture_text,
        clean_text = u.clean_text, content_hash = u.content_hash, external_ref = u.external_ref,
        metadata = u.metadata, idempotency_key_primary = u.idempotency_key_primary,
        idempotency_key_secondary = u.idempotency_key_secondary
    FROM unnest(
        CAST(%(entry_id)b AS bigint[]), CAST(%(updated_at)b AS text[]), CAST(%(source)b AS text[]),
        CAST(%(content_type)b AS text[]), CAST(%(title)b AS text[]), CAST(%(author)b AS text[]), CAST(%(url)b AS text[]),
        CAST(%(url_canonical)b AS text[]), CAST(%(capture_text)b AS text[]), CAST(%(clean_text)b AS text[]),
        CAST(%(content_hash)b AS text[]), CAST(%(external_ref)b AS text[]), CAST(%(metadata)b AS text[]),
        CAST(%(idempotency_key_primary)b AS text[]), CAST(%(idempotency_key_secondary)b AS text[])
    ) AS u(
        entry_id, updated_at, source, content_type, title, author, url, url_canonical, capture_text, clean_text,
        content_hash, external_ref, metadata, idempotency_key_primary, idempotency_key_secondary
    )
    WHERE e.entry_id = u.entry_id
"""


@functools.cache
def _statement(statement: str, entries: str) -> str:
    return statement.format(entries=entries, shown=_SHOWN, sent=_SENT.format(entries=entries))


class PostgresTable:
    """Entry table with concurrent writers: a row can change until it is locked."""

    is_alone = False

    def __init__(self, tx: Transaction, schema: EntrySchema, hint_policies: Collection[int]) -> None:
        self._tx = tx
        self._entries = schema.table("entries", is_sqlite=False)
        self._hint_policies = sorted(hint_policies)

    def take_turn(self) -> None:
        self._tx.exec_driver_sql(_TURN, {"entries": self._entries})

    def lock_table(self) -> None:
        self.take_turn()
        self._tx.exec_driver_sql(_statement(_LOCK_TABLE, self._entries))

    def find_and_insert(self, first: Sequence[Row], others: Sequence[Row]) -> LookupResult:
        if not first:
            return LookupResult(self.find(others), [])
        values = _keys([*first, *others])
        values |= {name: [row[POSITION[name]] for row in first] for name in ("id", *CONTENT)}
        values |= {"at": first[0][POSITION["created_at"]], "hint_policies": self._hint_policies}
        sent = {row[ID]: row for row in first}
        found, inserted = [], []
        for row in self._rows(_FIND_AND_INSERT, values):
            if row[POSITION["created_at"]] is None:
                inserted.append((row[ENTRY_ID], *sent[row[ID]][1:_SECONDARY], row[_SECONDARY]))
            else:
                found.append(row)
        return LookupResult(found, inserted)

    def find(self, rows: Sequence[Row]) -> Sequence[Row]:
        return self._rows(_FIND, _keys(rows))

    def read(self, entry_ids: Sequence[int]) -> Sequence[Row]:
        return self._rows(_READ, {"entry_ids": list(entry_ids)})

    def lock(self, entry_ids: Iterable[int]) -> Sequence[Row]:
        return self._rows(_LOCK, {"entry_ids": sorted(entry_ids)})

    def update(self, rows: Sequence[Row]) -> None:
        arrays = {name: [row[POSITION[name]] for row in rows] for name in ("entry_id", *MUTABLE)}
        self._tx.exec_driver_sql(_statement(_UPDATE, self._entries), arrays)

    def _rows(self, statement: str, values: dict[str, Any]) -> Sequence[Row]:
        result = self._tx.exec_driver_sql(_statement(statement, self._entries), values)
        # Plain tuples from the driver, without SQLAlchemy's rows.
        rows = result.cursor.fetchall()
        result.close()
        return rows


def _keys(rows: Sequence[Row]) -> dict[str, Any]:
    return {
        "policy_ids": [row[_POLICY_ID] for row in rows],
        "primaries": [row[_PRIMARY] for row in rows],
        "secondaries": [row[_SECONDARY] for row in rows],
    }
