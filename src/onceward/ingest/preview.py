"""What an insert would do, as things are now. Nothing is written."""

from __future__ import annotations

from collections.abc import Sequence

from onceward.db.clock import now_text
from onceward.db.engine import Transaction
from onceward.ingest.batch import Batch, Outcome
from onceward.ingest.columns import ASSIGNED
from onceward.ingest.draft import drafts_of
from onceward.ingest.inserted import Inserted, alone
from onceward.ingest.payload import Payload
from onceward.ingest.policy import list_policies
from onceward.ingest.schema import Schema
from onceward.ingest.tables import DryTable

_NOT_ASSIGNED = (None,) * len(ASSIGNED)


def preview(tx: Transaction, schema: Schema, payload: Payload, *, strict: bool = False) -> Inserted:
    """What inserting this payload would do; raises what is wrong with it. A new entry has no ids and times yet."""
    (result,) = preview_entries(tx, schema, [payload], strict=strict)
    return alone(result)


def preview_entries(
    tx: Transaction, schema: Schema, payloads: Sequence[Payload], *, strict: bool = False
) -> list[Inserted]:
    """As `preview`, for a batch: each as if those before it had been inserted."""
    policies = list_policies(tx, schema)
    drafts = drafts_of(payloads, policies, strict=strict)
    ids = [str(place) for place in range(len(drafts))]
    outcomes = Batch(DryTable(tx, schema, policies), drafts, ids, now_text()).run()
    return [Inserted(_unassigned(outcome), place) for place, outcome in enumerate(outcomes)]


def _unassigned(outcome: Outcome) -> Outcome:
    # What a dry run has inserted has an id below all others.
    if outcome.row is None or outcome.row[0] > 0:
        return outcome
    return outcome._replace(row=(*_NOT_ASSIGNED, *outcome.row[len(ASSIGNED) :]))
