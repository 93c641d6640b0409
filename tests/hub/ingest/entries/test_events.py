"""The events of entries: committed with the rows, small, and only if something changed."""

from __future__ import annotations

import json

import pytest
from sqlalchemy import text
from tests.hub.ingest.entries.payloads import events, newsletter, stored, thought

from onceward.hub.db import append
from onceward.hub.db.engine import Database
from onceward.hub.ingest.entries.columns import COLUMNS, TEXT_BYTES_MAX
from onceward.hub.ingest.entries.insert import insert_entries, insert_entry
from onceward.hub.ingest.entries.open_table import table_of
from onceward.hub.ingest.entries.schema import PKM, PKM_TEST
from onceward.hub.ingest.payload import Payload

ODD = 'a "quoted" \\ line\nand \u2028 ä 🙂'


def test_an_event_names_the_entry_and_never_has_its_texts(database: Database) -> None:
    sent = thought(1, ODD, title=ODD, url="https://example.com/?a=b", metadata={"source_time": None, "large": "x"})
    result = insert_entry(database, PKM_TEST, sent)
    edited = insert_entry(database, PKM_TEST, {**sent, "title": "new", "metadata": {"large": "y"}})

    inserted, updated = events(database)
    row = result.row or {}
    assert [inserted.event_id, updated.event_id] == [result.event_id, edited.event_id]
    assert (inserted.name, updated.name) == ("entry.inserted", "entry.updated")
    assert {(event.entity_type, event.entity_id, event.topic_id) for event in (inserted, updated)} == {
        ("entry", row["id"], None)
    }
    shown = {
        "schema": "pkm_test",
        "idempotency_policy_key": "telegram_thought_v1",
        **{
            name: row[name]
            for name in COLUMNS
            if name
            not in {
                "author",
                "url_canonical",
                "capture_text",
                "clean_text",
                "content_hash",
                "metadata",
                "idempotency_policy_id",
            }
        },
    }
    assert json.loads(inserted.data) == shown
    assert json.loads(updated.data) == {
        **shown,
        "title": "new",
        "updated_at": (edited.row or {})["updated_at"],
        "changed": ["title", "metadata"],
        "matched_on": "primary",
    }
    assert json.loads(inserted.json)["data"] == shown


def test_an_entry_without_a_policy_has_an_event_too(database: Database) -> None:
    insert_entry(database, PKM, {"source": "manual"})

    (event,) = events(database)
    assert json.loads(event.data)["idempotency_policy_key"] is None
    assert json.loads(event.data)["content_type"] is None


def test_events_stay_small_however_large_the_entries_are(database: Database) -> None:
    largest = {
        name: "x" * bytes_max for name, bytes_max in TEXT_BYTES_MAX.items() if name not in {"source", "content_type"}
    }
    insert_entry(database, PKM, thought(1, **largest))

    (event,) = events(database)
    assert len(event.data) < 20_000


def test_a_skipped_or_unchanged_entry_has_no_event(database: Database) -> None:
    bad: Payload = {"source": "email"}
    batch = [thought(1), newsletter("<1@x>", "monday"), thought(1), newsletter("<1@x>", None), bad]
    results = insert_entries(database, PKM, batch)

    assert [result.event_id for result in results] == [1, 2, None, None, None]
    assert [event.event_id for event in events(database)] == [1, 2]


def test_the_events_of_a_batch_are_consecutive_and_in_the_order_of_its_items(database: Database) -> None:
    results = insert_entries(database, PKM, [thought(n, "same") for n in (9, 3, 7, 1)])

    assert [result.event_id for result in results] == [1, 2, 3, 4]
    assert [json.loads(event.data)["external_ref"] for event in events(database)] == [
        "tg:1:9", "tg:1:3", "tg:1:7", "tg:1:1",
    ]  # fmt: skip


@pytest.mark.parametrize("after", ["find_and_insert", "update", "events"])
def test_a_crash_between_two_statements_leaves_nothing(
    database: Database, monkeypatch: pytest.MonkeyPatch, after: str
) -> None:
    class Crash(Exception):
        pass

    insert_entry(database, PKM, thought(1))
    before, log = stored(database), events(database)
    with database.write() as tx:
        table = type(table_of(tx, PKM, ()))
    place, name = (append, "append") if after == "events" else (table, after)
    whole = getattr(place, name)

    def crash(*arguments: object) -> None:
        whole(*arguments)
        raise Crash

    monkeypatch.setattr(place, name, crash)
    with pytest.raises(Crash):
        insert_entries(database, PKM, [thought(2), thought(1, "edited")])
    monkeypatch.undo()

    assert (stored(database), events(database)) == (before, log)
    results = insert_entries(database, PKM, [thought(2), thought(1, "edited")])
    assert [result.action for result in results] == ["inserted", "updated"]


def test_an_event_that_cannot_be_appended_rolls_its_entry_back(database: Database) -> None:
    with database.write() as tx:
        if database.is_sqlite:
            tx.execute(text("CREATE TRIGGER full BEFORE INSERT ON events BEGIN SELECT RAISE(ABORT, 'full'); END"))
        else:
            tx.execute(text("ALTER TABLE events ADD CONSTRAINT full_now CHECK (name <> 'entry.inserted')"))

    with pytest.raises(Exception, match=r"committed first|full"):
        insert_entry(database, PKM, thought(1))

    assert (stored(database), events(database)) == ([], [])
