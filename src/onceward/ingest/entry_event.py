"""The events of entries, and how a request that runs again reads back what its first run did.

An event is small: it says which entry, under which keys, and what changed, never the texts. The events of one batch
have consecutive ids. With a key each says which item it is about, and the first one, how many they are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

from onceward.core.text import written
from onceward.db.engine import Transaction
from onceward.db.request import RequestKey
from onceward.events.log import Event, NewEvent, append, page
from onceward.ingest.batch import Outcome
from onceward.ingest.columns import COLUMNS, POLICY_ID, PRIMARY, SECONDARY
from onceward.ingest.decide import POSITION, Row
from onceward.ingest.policy import Policy
from onceward.ingest.schema import Schema

INSERTED = "entry.inserted"
UPDATED = "entry.updated"

_SHOWN = (
    "id", "entry_id", "source", "content_type", "title", "url", "external_ref", PRIMARY, SECONDARY, "created_at",
    "updated_at",
)  # fmt: skip
_PLACES = tuple((name, POSITION[name]) for name in _SHOWN)
_ID, _POLICY_ID = POSITION["id"], POSITION[POLICY_ID]


def append_events(
    tx: Transaction,
    schema: Schema,
    outcomes: Sequence[Outcome],
    policy_keys: Mapping[int, str],
    request: RequestKey | None,
) -> dict[int, int]:
    """Append the events of those that changed something, as the last step; gives their ids by the items' places."""
    changed = [place for place, one in enumerate(outcomes) if one.action == "inserted" or one.changed]
    count = len(changed)
    new = []
    for number, place in enumerate(changed):
        outcome = outcomes[place]
        row = cast("Row", outcome.row)
        data: dict[str, Any] = {"schema": schema.name}
        data |= {name: row[position] for name, position in _PLACES}
        data["idempotency_policy_key"] = policy_keys.get(row[_POLICY_ID])
        if outcome.action == "updated":
            data["changed"] = outcome.changed
            data["matched_on"] = outcome.matched_on
        if outcome.split_with is not None:
            data["split_with"] = [outcome.split_with]
        if outcome.duplicate_of is not None:
            data["duplicate_of_index"] = outcome.duplicate_of
        if request is not None:
            data["index"] = place
            if number == 0:
                data["count"] = count
        name = INSERTED if outcome.action == "inserted" else UPDATED
        new.append(NewEvent(name, None, "entry", row[_ID], written(data)))
    return dict(zip(changed, append(tx, new, request), strict=True))


def done_before(tx: Transaction, first: Event) -> dict[int, tuple[Event, dict[str, Any]]]:
    """What the request did whose first event this is: every event of it, with its data, by the place of the item."""
    done: dict[int, tuple[Event, dict[str, Any]]] = {}
    last = first.event_id + json.loads(first.data)["count"] - 1
    after = first.event_id - 1
    while after < last:
        events = page(tx, after, last, last - after)
        if not events:
            break
        for event in events:
            data = json.loads(event.data)
            done[data["index"]] = event, data
        after = events[-1].event_id
    return done


def row_of_event(data: Mapping[str, Any], policies: Sequence[Policy]) -> Row:
    """As much of an entry as its event tells, for one that is no longer there."""
    named = (policy.policy_id for policy in policies if policy.policy_key == data["idempotency_policy_key"])
    known = {**data, POLICY_ID: next(named, None), "metadata": "{}"}
    return tuple(known.get(name) for name in COLUMNS)
