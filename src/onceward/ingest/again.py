"""Answering a request that was carried out before, as its first run was answered.

Items that changed something have their event. All others changed nothing then, and change nothing now: they are looked
for, and that is all. Whatever somebody else has made of an entry since stays.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from onceward.db.clock import now_text
from onceward.db.engine import Transaction
from onceward.errors import InvalidInput, NotFound, OncewardError
from onceward.events.log import Event
from onceward.ingest.batch import Batch, Drafts, Outcome
from onceward.ingest.decide import Row, changes
from onceward.ingest.draft import Draft
from onceward.ingest.entry_event import INSERTED, done_before, row_of_event
from onceward.ingest.inserted import Inserted
from onceward.ingest.policy import Policy
from onceward.ingest.schema import Schema
from onceward.ingest.table import ENTRY_ID
from onceward.ingest.tables import DryTable


def answer_again(
    tx: Transaction, schema: Schema, drafts: Drafts, policies: Sequence[Policy], first: Event
) -> list[Inserted]:
    """The answer of the run whose first event this is. An entry is shown as it is by now."""
    done = done_before(tx, first)
    table = DryTable(tx, schema, policies)
    there = {row[ENTRY_ID]: row for row in table.read([data["entry_id"] for _, data in done.values()])}
    firsts: dict[int, int] = {}
    for place in sorted(done):
        firsts.setdefault(done[place][1]["entry_id"], place)
    others = [place for place in range(len(drafts)) if place not in done]
    looked = Batch(
        table,
        [_only_found(drafts[place]) for place in others],
        [str(place) for place in others],
        now_text(),
        firsts,
        others,
    ).run()
    found = dict(zip(others, looked, strict=True))
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
    outcome = Outcome(
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


def _as_found(outcome: Outcome, draft: Draft | OncewardError) -> Outcome:
    if outcome.row is None or isinstance(draft, OncewardError):
        return outcome
    if outcome.row[ENTRY_ID] < 0:
        # A dry run would insert it: it is gone.
        return Outcome("failed", error=NotFound("the entry that this item was the same as is no longer there"))
    if draft.policy is None or draft.policy.conflict_action == "skip":
        return outcome
    try:
        _, is_stale = changes(outcome.row, draft, primary_is_free=False, secondary_is_free=False)
    except InvalidInput as error:
        return Outcome("failed", error=error)
    return outcome._replace(action="updated", is_stale=is_stale)
