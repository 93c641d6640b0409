"""Replay of a repeated insert request: returns the results of its first run, and writes nothing.

Items that changed something then have an event. All other items changed nothing, so they are only searched for.
Changes that others have made to an entry since then stay.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from onceward.errors import InvalidInput, NotFound, OncewardError
from onceward.hub.db.engine import Transaction
from onceward.hub.db.timestamps import now_text
from onceward.hub.events.log import Event
from onceward.hub.ingest.entries.batch import Batch, Drafts, EntryOutcome
from onceward.hub.ingest.entries.decision import Row, changes
from onceward.hub.ingest.entries.draft import Draft
from onceward.hub.ingest.entries.events import INSERTED, done_before, row_of_event
from onceward.hub.ingest.entries.open_table import DryTable, table_of
from onceward.hub.ingest.entries.policy import Policy
from onceward.hub.ingest.entries.result import Inserted
from onceward.hub.ingest.entries.schema import EntrySchema
from onceward.hub.ingest.entries.table import ENTRY_ID


def replay_results(
    tx: Transaction, schema: EntrySchema, drafts: Drafts, policies: Sequence[Policy], first: Event
) -> list[Inserted]:
    """Return the results of the run whose first event this is. Entries are shown in their current state."""
    done = done_before(tx, first)
    table = table_of(tx, schema, policies)
    there = {row[ENTRY_ID]: row for row in table.read([data["entry_id"] for _, data in done.values()])}
    firsts: dict[int, int] = {}
    for place in sorted(done):
        firsts.setdefault(done[place][1]["entry_id"], place)
    others = [place for place in range(len(drafts)) if place not in done]
    outcomes = Batch(
        DryTable(table, policies),
        [_only_found(drafts[place]) for place in others],
        [str(place) for place in others],
        now_text(),
        firsts,
        others,
    ).run()
    found = dict(zip(others, outcomes, strict=True))
    results = []
    for place, draft in enumerate(drafts):
        if place in done:
            event, data = done[place]
            row = there.get(data["entry_id"]) or row_of_event(data, policies)
            results.append(_as_then(place, event, data, row))
        else:
            results.append(Inserted(_as_found(found[place], draft), place))
    return results


def _as_then(place: int, event: Event, data: dict[str, Any], row: Row) -> Inserted:
    outcome = EntryOutcome(
        "inserted" if event.name == INSERTED else "updated",
        row,
        tuple(data.get("changed", ())),
        data.get("matched_on"),
        data.get("split_with", [None])[0],
        data.get("duplicate_of_index"),
    )
    return Inserted(outcome, place, event.event_id)


def _only_found(draft: Draft | OncewardError) -> Draft | OncewardError:
    if isinstance(draft, OncewardError) or draft.policy is None:
        return draft
    return draft._replace(policy=dataclasses.replace(draft.policy, conflict_action="skip"))


def _as_found(outcome: EntryOutcome, draft: Draft | OncewardError) -> EntryOutcome:
    if outcome.row is None or isinstance(draft, OncewardError):
        return outcome
    if outcome.row[ENTRY_ID] < 0:
        # A dry run would insert it, so the entry was deleted.
        return EntryOutcome("failed", error=NotFound("the entry that this item matched no longer exists"))
    if draft.policy is None or draft.policy.conflict_action == "skip":
        return outcome
    try:
        _, is_stale = changes(outcome.row, draft, primary_is_free=False, secondary_is_free=False)
    except InvalidInput as error:
        return EntryOutcome("failed", error=error)
    return outcome._replace(action="updated", is_stale=is_stale)
