"""Dry run of an insert: returns what it would do now, and writes nothing."""

from __future__ import annotations

from collections.abc import Sequence

from onceward.hub.db.engine import Transaction
from onceward.hub.db.timestamps import now_text
from onceward.hub.ingest.entries.batch import Batch, EntryOutcome
from onceward.hub.ingest.entries.columns import ASSIGNED
from onceward.hub.ingest.entries.draft import drafts_of
from onceward.hub.ingest.entries.open_table import DryTable
from onceward.hub.ingest.entries.policy import list_policies
from onceward.hub.ingest.entries.result import Inserted, alone
from onceward.hub.ingest.entries.schema import EntrySchema
from onceward.hub.ingest.payload import Payload

_NOT_ASSIGNED = (None,) * len(ASSIGNED)


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
    outcomes = Batch(DryTable(tx, schema, policies), drafts, ids, now_text()).run()
    return [Inserted(_unassigned(outcome), place) for place, outcome in enumerate(outcomes)]


def _unassigned(outcome: EntryOutcome) -> EntryOutcome:
    # `DryTable` gives new entries negative ids.
    if outcome.row is None or outcome.row[0] > 0:
        return outcome
    return outcome._replace(row=(*_NOT_ASSIGNED, *outcome.row[len(ASSIGNED) :]))
