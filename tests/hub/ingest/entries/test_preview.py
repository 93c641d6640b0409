"""Previews: the result of an insert without the insert."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.hub.ingest.entries.payloads import KINDS, events, make_policies, newsletter, note, stored, thought

from onceward.core.canonical import Json
from onceward.errors import Conflict, InvalidInput
from onceward.hub.db.engine import Database
from onceward.hub.ingest.entries.columns import ASSIGNED
from onceward.hub.ingest.entries.insert import Inserted, insert_entries
from onceward.hub.ingest.entries.preview import preview, preview_entries
from onceward.hub.ingest.entries.schema import PKM, PKM_TEST
from onceward.hub.ingest.payload import Payload


def previewed(database: Database, payload: Payload, *, strict: bool = False) -> Inserted:
    with database.read() as tx:
        return preview(tx, PKM, payload, strict=strict)


def test_a_preview_shows_the_resulting_entry_and_writes_nothing(database: Database) -> None:
    insert_entries(database, PKM, [thought(1, "old", metadata={"a": 1}), newsletter("<1@x>", "d")])
    before, log = stored(database), events(database)

    new = previewed(database, thought(2, "old"))
    changed = previewed(database, thought(1, "new", metadata={"b": 2}))
    skipped = previewed(database, newsletter("<2@x>", "d"))

    assert (new.action, new.index) == ("inserted", None)
    assert {name: (new.row or {})[name] for name in ASSIGNED} == dict.fromkeys(ASSIGNED)
    assert (new.row or {})["idempotency_key_secondary"] is None, "another one has the hint"
    assert (changed.action, changed.changed) == ("updated", True)
    assert (changed.row or {})["clean_text"] == "new"
    assert (changed.row or {})["metadata"] == {"a": 1, "b": 2}
    assert (skipped.action, skipped.matched_on) == ("skipped", "secondary")
    assert (stored(database), events(database)) == (before, log)


def test_a_preview_refuses_what_an_insert_would_refuse(database: Database) -> None:
    insert_entries(database, PKM, [newsletter("<1@x>", "d1"), newsletter("<2@x>", "d2")])

    with pytest.raises(InvalidInput):
        previewed(database, {"source": "email"})
    with pytest.raises(Conflict):
        previewed(database, newsletter("<1@x>", "d2"), strict=True)


keys = st.sampled_from([None, "a", "b"])
kinds = st.sampled_from([None, *KINDS])
titles: st.SearchStrategy[Json] = st.sampled_from(["x", "y"])
payloads = st.builds(lambda kind, p, s, title: note(kind, p, s, title=title), kinds, keys, keys, titles)


def summary_of(result: Inserted) -> dict[str, Any]:
    shown = result.json()
    for name in (*ASSIGNED, "event_id", "split_with"):
        shown.pop(name, None)
    return {**shown, "is_split": bool(result.split_with)}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=25)
@given(st.lists(payloads, min_size=1, max_size=10))
def test_a_preview_of_a_batch_reports_what_the_insert_then_does(database: Database, batch: list[Payload]) -> None:
    make_policies(database)
    with database.read() as tx:
        expected = preview_entries(tx, PKM_TEST, batch)

    results = insert_entries(database, PKM_TEST, batch)

    assert list(map(summary_of, expected)) == list(map(summary_of, results))
