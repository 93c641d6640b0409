"""Events of entries, and how a repeated request reads the events of its first run.

An event is small: it names the entry, its keys and the changed columns, but never contains the texts. The events of one
batch have consecutive ids. In a keyed request each event has the index of its item, and the first event also has the
number of events.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from onceward.core.json_text import quoted, written
from onceward.hub.db.append import MarkedEvent, NewEvent, marked
from onceward.hub.db.engine import Transaction
from onceward.hub.db.request_key import RequestKey
from onceward.hub.events.log import Event, page
from onceward.hub.ingest.entries.batch import EntryOutcome
from onceward.hub.ingest.entries.columns import ASSIGNED, COLUMNS, POLICY_ID, PRIMARY, SECONDARY
from onceward.hub.ingest.entries.decision import POSITION, Row
from onceward.hub.ingest.entries.policy import Policy
from onceward.hub.ingest.entries.schema import EntrySchema

INSERTED = "entry.inserted"
UPDATED = "entry.updated"

_POLICY_ID = POSITION[POLICY_ID]
_TEXTS = ("source", "content_type", "title", "url", "external_ref", PRIMARY, SECONDARY)
# The row's columns in the data of an event, as a format string.
_ROW = ",".join(f'"{name}":%s' for name in _TEXTS)
_PLACES = tuple(POSITION[name] for name in _TEXTS)


def events_of(
    schema: EntrySchema, outcomes: Sequence[EntryOutcome], policies: Iterable[Policy], request: RequestKey | None
) -> dict[int, NewEvent | MarkedEvent]:
    """Return an event for each item that changed something, by item index, the first one with the request's mark."""
    places = [place for place, one in enumerate(outcomes) if one.action == "inserted" or one.changed]
    names = {policy.policy_id: policy.policy_key for policy in policies}
    # Formatted by hand: encoding a dictionary would cost more than the insert.
    begins = {
        number: f'{{"schema":"{schema.name}","idempotency_policy_key":{written(names.get(number))}'
        for number in {cast("Row", outcomes[place].row)[_POLICY_ID] for place in places}
    }
    new: list[NewEvent] = []
    for place in places:
        outcome = outcomes[place]
        row = cast("Row", outcome.row)
        entry_id, uuid, created_at, updated_at = row[: len(ASSIGNED)]
        texts = _ROW % tuple(["null" if (text := row[position]) is None else quoted(text) for position in _PLACES])
        rest = "" if outcome.action == "inserted" else _rest(outcome)
        if request is not None:
            rest += f',"index":{place}' if new else f',"index":{place},"count":{len(places)}'
        data = (
            f'{begins[row[_POLICY_ID]]},"id":"{uuid}","entry_id":{entry_id},"created_at":"{created_at}",'
            f'"updated_at":"{updated_at}",{texts}{rest}}}'
        )
        new.append(NewEvent(INSERTED if outcome.action == "inserted" else UPDATED, None, "entry", uuid, data))
    return dict(zip(places, marked(new, request), strict=True))


def _rest(outcome: EntryOutcome) -> str:
    """Return the additional fields in the event of an update."""
    more: dict[str, Any] = {"changed": outcome.changed, "matched_on": outcome.matched_on}
    if outcome.split_with is not None:
        more["split_with"] = [outcome.split_with]
    if outcome.duplicate_of is not None:
        more["duplicate_of_index"] = outcome.duplicate_of
    return "," + written(more)[1:-1]


def done_before(tx: Transaction, first: Event) -> dict[int, tuple[Event, dict[str, Any]]]:
    """Return all events of the request whose first event this is, with their data, by item index."""
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


def row_of_event(data: Mapping[str, Any], policies: Iterable[Policy]) -> Row:
    """Return a deleted entry's row as far as its event contains it."""
    named = (policy.policy_id for policy in policies if policy.policy_key == data["idempotency_policy_key"])
    known = {**data, POLICY_ID: next(named, None), "metadata": "{}"}
    return tuple(known.get(name) for name in COLUMNS)
