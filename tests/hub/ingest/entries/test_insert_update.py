"""Updates on both databases: what they change, what they leave, and when they do nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.hub.ingest.entries.payloads import UPDATE_IDENTITY, events, make_policies, note, stored, thought

from onceward.core.canonical import Json
from onceward.hub.db.engine import Database
from onceward.hub.ingest.entries.insert import insert_entries, insert_entry
from onceward.hub.ingest.entries.schema import PKM

EARLY, LATE = "2026-11-16T03:26:00.000000Z", "2026-11-16T03:27:00.000000Z"


def test_an_update_changes_what_is_sent_except_the_deny_list(database: Database) -> None:
    sent = thought(1, title="old", author="me", url="https://example.com/", metadata={"a": {"x": 1}, "l": [1]})
    before = insert_entry(database, PKM, sent).row or {}
    forged: dict[str, Json] = {"id": "0" * 8, "entry_id": 99, "created_at": "1970", "updated_at": "1970"}

    result = insert_entry(
        database, PKM, thought(1, "edited", title=None, metadata={"a": {"y": 2}, "l": [], "n": None}, **forged)
    )

    (row,) = stored(database)
    assert row == {
        **before,
        "updated_at": row["updated_at"],
        "title": None,
        "clean_text": "edited",
        "metadata": '{"a":{"x":1,"y":2},"l":[],"n":null}',
    }
    assert row["updated_at"] > before["updated_at"]
    assert (result.action, result.changed, result.matched_on) == ("updated", True, "primary")
    assert result.row == {**row, "metadata": json.loads(row["metadata"])}


@pytest.mark.parametrize(
    ("fields", "changed"),
    [(None, ["title", "author", "metadata"]), (["title"], ["title"]), (["metadata", "url"], ["metadata"]), ([], [])],
    ids=["null", "one", "two", "none"],
)
def test_update_fields_select_the_columns_that_change(
    database: Database, fields: list[str] | None, changed: list[str]
) -> None:
    make_policies(database, update_fields=fields)
    insert_entry(database, PKM, note(UPDATE_IDENTITY, "p", "s", title="old", author="old", metadata={"v": 1}))
    before = stored(database)[0]

    result = insert_entry(database, PKM, note(UPDATE_IDENTITY, "p", "s", title="new", author="new", metadata={"v": 2}))

    after = stored(database)[0]
    assert [name for name in after if after[name] != before[name] and name != "updated_at"] == changed
    assert result.action == "updated"
    assert result.changed is bool(changed)
    assert (after["updated_at"] > before["updated_at"]) is bool(changed)
    assert len(events(database)) == 1 + bool(changed)


def test_an_update_without_changes_leaves_no_trace(database: Database) -> None:
    sent = thought(1, metadata={"a": 1, "b": [1, {"c": 2}]})
    insert_entry(database, PKM, sent)
    before, log = stored(database), events(database)

    same = insert_entry(database, PKM, {**sent, "metadata": {"b": [1.0, {"c": 2}], "a": 1}})
    less = insert_entry(database, PKM, {name: sent[name] for name in sent if name not in {"metadata", "clean_text"}})

    for result in (same, less):
        assert (result.action, result.changed, result.event_id, result.stale) == ("updated", False, None, False)
        assert result.json()["changed"] is False
    assert (stored(database), events(database)) == (before, log)


def version(time: str | None, said: str, ref: str = "r") -> dict[str, Any]:
    return thought(1, said, external_ref=ref, metadata={"source_time": time, "said": said})


def test_an_older_edit_does_not_overwrite_a_newer_one(database: Database) -> None:
    insert_entry(database, PKM, version(LATE, "new"))
    before, log = stored(database), events(database)

    result = insert_entry(database, PKM, version(EARLY, "old"))

    assert (result.action, result.changed, result.stale) == ("updated", False, True)
    assert result.json()["stale"] is True
    assert (stored(database), events(database)) == (before, log)


def test_versions_give_the_same_result_in_any_order_of_arrival(database: Database) -> None:
    versions = [version(EARLY, "one"), version(LATE, "two", "a"), version(LATE, "three", "b")]
    for order in ([0, 1, 2], [2, 1, 0], [1, 2, 0], [2, 0, 1]):
        number = order[0] * 10 + order[1]
        batch = [{**versions[n], "idempotency_key_primary": f"tg:{number}:1"} for n in order]
        half = len(order) // 2
        insert_entries(database, PKM, batch[:half])
        insert_entries(database, PKM, batch[half:])

    assert {row["clean_text"] for row in stored(database)} == {"three"}


def test_without_a_time_the_later_arrival_wins(database: Database) -> None:
    for time, said in ((LATE, "one"), (None, "two"), (EARLY, "three"), ("not a time", "four"), (EARLY, "five")):
        result = insert_entry(database, PKM, version(time, said))
        assert result.changed
        assert not result.stale

    assert [row["clean_text"] for row in stored(database)] == ["five"]


def test_metadata_that_would_grow_too_large_fails_alone(database: Database) -> None:
    large = "x" * 40_000
    insert_entry(database, PKM, thought(1, metadata={"a": large}))

    failed, fine = insert_entries(database, PKM, [thought(1, metadata={"b": large}), thought(2, metadata={"b": large})])

    assert (failed.action, fine.action) == ("failed", "inserted")
    assert failed.json()["error"] == {
        "code": "badRequest",
        "detail": "metadata must be at most 65536 bytes of compact JSON, got 80015",
        "errors": [{"field": "metadata", "message": "must be at most 65536 bytes of compact JSON, got 80015"}],
    }
