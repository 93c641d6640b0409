"""Preview of an insert: the dry run of a batch, and the lookup that recognises a repeated entry without a lock."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from onceward.errors import OncewardError
from onceward.hub.db.engine import Database, Transaction
from onceward.hub.db.lookup import Lookup
from onceward.hub.db.raw_sql import RawStatement
from onceward.hub.db.timestamps import now_text
from onceward.hub.ingest.entries import policy as policies_of
from onceward.hub.ingest.entries.batch import Batch, EntryOutcome
from onceward.hub.ingest.entries.columns import ASSIGNED, COLUMNS, PRIMARY, SECONDARY
from onceward.hub.ingest.entries.decision import Row
from onceward.hub.ingest.entries.draft import POLICY_KEY, Draft, drafts_of
from onceward.hub.ingest.entries.open_table import DryTable, table_of
from onceward.hub.ingest.entries.policy import Policy, list_policies, read_policy
from onceward.hub.ingest.entries.result import Inserted, alone
from onceward.hub.ingest.entries.schema import PKM, PKM_TEST, EntrySchema
from onceward.hub.ingest.payload import Payload

_NOT_ASSIGNED = (None,) * len(ASSIGNED)

_POLICY = ", ".join(f"p.{name}" for name in policies_of.COLUMNS)
_POLICY_END = 1 + len(policies_of.COLUMNS)
_BY_KEY = """
    (SELECT entry_id FROM {entries}
     WHERE idempotency_policy_id = p.policy_id AND idempotency_key_{role} = {asked}key_{role})
"""
_BY_PRIMARY, _BY_SECONDARY = (_BY_KEY.replace("{role}", role) for role in ("primary", "secondary"))
# The mode, the policy of the entry if it exists, and each entry that has one of the keys.
_FIND_SQLITE = f"""
    SELECT mode.test_mode, {_POLICY}, {", ".join(f"e.{name}" for name in COLUMNS)}
    FROM ingest_mode AS mode
    LEFT JOIN {{policies}} AS p ON p.policy_key = :policy_key
    LEFT JOIN {{entries}} AS e ON e.entry_id IN ({_BY_PRIMARY}, {_BY_SECONDARY})
"""  # noqa: S608  # built from constants
_FIND_POSTGRES = f"""
    WITH asked AS MATERIALIZED (
        SELECT a.place, {_POLICY}, {_BY_PRIMARY} AS by_primary, {_BY_SECONDARY} AS by_secondary
        FROM (SELECT j.place, j.row ->> 'policy_key' AS policy_key, j.row ->> 'key_primary' AS key_primary,
                     j.row ->> 'key_secondary' AS key_secondary
              FROM json_array_elements(CAST(:asked AS json)) WITH ORDINALITY AS j(row, place)) AS a
        LEFT JOIN {{policies}} AS p ON p.policy_key = a.policy_key
    )
    SELECT p.place, mode.test_mode, {_POLICY}, {", ".join(f"e.{name}" for name in COLUMNS)}
    FROM asked AS p CROSS JOIN ingest_mode AS mode
    LEFT JOIN LATERAL (
        SELECT {", ".join(COLUMNS).replace(" id,", " CAST(id AS text) AS id,", 1)} FROM {{entries}}
        WHERE entry_id = ANY(ARRAY[p.by_primary, p.by_secondary]) OFFSET 0
    ) AS e ON true
"""  # noqa: S608  # built from constants


@functools.cache
def _lookup(schema: EntrySchema) -> Lookup:
    def statement(sql: str, *, is_sqlite: bool) -> str:
        return sql.format(
            policies=schema.table("idempotency_policies", is_sqlite=is_sqlite),
            entries=schema.table("entries", is_sqlite=is_sqlite),
            asked=":" if is_sqlite else "a.",
        )

    return Lookup(RawStatement(statement(_FIND_SQLITE, is_sqlite=True)), statement(_FIND_POSTGRES, is_sqlite=False))


class FoundEntries(NamedTuple):
    """Everything a payload concerns: its schema, its policy by key if it exists, and the entries that have its keys."""

    schema: EntrySchema
    policies: Mapping[str, Policy]
    rows: Sequence[Row]

    def find(self, _rows: Sequence[Row]) -> Sequence[Row]:
        return self.rows


async def find_entries(database: Database, payload: Payload, schema: EntrySchema | None) -> FoundEntries:
    """Look up what a payload concerns, in a schema or in the active one, without a lock."""
    names = {"policy_key": POLICY_KEY, "key_primary": PRIMARY, "key_secondary": SECONDARY}
    # Values of other types are refused later.
    sent = {name: payload.get(column) for name, column in names.items()}
    asked = {name: value if isinstance(value, str) else None for name, value in sent.items()}
    found = await database.lookups.find(_lookup(schema or PKM), asked)
    if schema is None:
        is_test = found[0][0]
        schema = PKM_TEST if is_test else PKM
        if is_test:
            found = await database.lookups.find(_lookup(PKM_TEST), asked)
    policies = {}
    if found[0][1] is not None:
        policy = read_policy(found[0][1:_POLICY_END])
        policies[policy.policy_key] = policy
    rows = [tuple(row[_POLICY_END:]) for row in found if row[_POLICY_END] is not None]
    return FoundEntries(schema, policies, rows)


def result_without_write(found: FoundEntries, draft: Draft | OncewardError) -> Inserted | None:
    """Return the result for a refused payload, or for an entry that exists and would not change; otherwise None."""
    if not found.rows and isinstance(draft, Draft):
        return None
    (outcome,) = Batch(DryTable(found, found.policies.values()), [draft], [""], now_text()).run()
    return None if outcome.action == "inserted" or outcome.changed else Inserted(outcome)


def preview(tx: Transaction, schema: EntrySchema, payload: Payload, *, strict: bool = False) -> Inserted:
    """Return what inserting this payload would do, or raise its error. A new entry has no ids and times yet."""
    (result,) = preview_entries(tx, schema, [payload], strict=strict)
    return alone(result)


def preview_entries(
    tx: Transaction, schema: EntrySchema, payloads: Sequence[Payload], *, strict: bool = False
) -> list[Inserted]:
    """Preview a batch: each payload as if those before it had been inserted."""
    policies = list_policies(tx, schema)
    drafts = drafts_of(payloads, policies, strict=strict)
    ids = [str(place) for place in range(len(drafts))]
    table = DryTable(table_of(tx, schema, policies), policies)
    outcomes = Batch(table, drafts, ids, now_text()).run()
    return [Inserted(_unassigned(outcome), place) for place, outcome in enumerate(outcomes)]


def _unassigned(outcome: EntryOutcome) -> EntryOutcome:
    # `DryTable` gives new entries negative ids.
    if outcome.row is None or outcome.row[0] > 0:
        return outcome
    return outcome._replace(row=(*_NOT_ASSIGNED, *outcome.row[len(ASSIGNED) :]))
