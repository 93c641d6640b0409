"""Batches on both databases: in order, each item alone with its error, and the same as one by one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, Engine, event, text
from tests.hub.ingest.entries.payloads import KINDS, events, make_policies, newsletter, note, stored, thought

from onceward.core.canonical import Json
from onceward.errors import InvalidInput, WriteRefused
from onceward.hub.db.engine import Database
from onceward.hub.db.raw_sql import sqlite_connection
from onceward.hub.ingest.entries.insert import ITEMS_MAX, Inserted, insert_entries, insert_entry
from onceward.hub.ingest.entries.policy import put_policy
from onceward.hub.ingest.entries.schema import PKM, PKM_TEST
from onceward.hub.ingest.payload import Payload


def actions(results: list[Inserted]) -> list[str]:
    return [result.action for result in results]


def duplicates(results: list[Inserted]) -> list[int | None]:
    return [result.duplicate_of_index for result in results]


def test_results_keep_the_order_of_the_items_and_a_bad_one_fails_alone(database: Database) -> None:
    results = insert_entries(
        database,
        PKM,
        [thought(5), {"source": "email"}, thought(3), {"colour": "red"}, {"source": "manual"}, thought(4)],
    )

    assert actions(results) == ["inserted", "failed", "inserted", "failed", "inserted", "inserted"]
    assert [result.index for result in results] == [0, 1, 2, 3, 4, 5]
    assert [(result.row or {}).get("external_ref") for result in results] == [
        "tg:1:5", None, "tg:1:3", None, None, "tg:1:4",
    ]  # fmt: skip
    failed = results[1].json()
    assert list(failed) == ["index", "action", "error"]
    assert isinstance(failed["error"], dict)
    assert list(failed["error"]) == ["code", "detail", "errors"]
    assert [row["external_ref"] for row in stored(database)] == ["tg:1:5", "tg:1:3", None, "tg:1:4"]


def test_a_rerun_inserts_nothing_updates_nothing_and_has_no_events(database: Database) -> None:
    batch = [*(thought(n, f"text {n}") for n in range(20)), *(newsletter(f"<{n}@x>", f"day {n}") for n in range(20))]
    first = insert_entries(database, PKM, batch)
    before, log = stored(database), events(database)

    again = insert_entries(database, PKM, list(reversed(batch)))

    assert actions(first) == ["inserted"] * 40
    assert actions(again) == ["skipped"] * 20 + ["updated"] * 20
    assert {result.changed for result in again} == {False}
    assert [result.row for result in again] == [result.row for result in reversed(first)]
    assert (stored(database), events(database)) == (before, log)


def test_an_existing_entry_in_the_middle_of_a_new_batch_is_found(database: Database) -> None:
    """The batch looks up the first few and takes the rest for new, which is wrong for some."""
    insert_entries(database, PKM, [newsletter("<25@x>", "a day"), newsletter(None, "day 30")])

    results = insert_entries(database, PKM, [newsletter(f"<{n}@x>", f"day {n}") for n in range(40)])

    assert [number for number, result in enumerate(results) if result.action == "skipped"] == [25, 30]
    assert [result.matched_on for result in results if result.action == "skipped"] == ["primary", "secondary"]
    assert len(stored(database)) == 40


def test_duplicates_in_one_batch_are_found_by_either_key(database: Database) -> None:
    results = insert_entries(
        database,
        PKM,
        [
            newsletter("<1@x>", "monday"),
            newsletter("<2@x>", "tuesday"),
            newsletter("<1@x>", "friday"),
            newsletter("<3@x>", "tuesday"),
            newsletter(None, "monday"),
            newsletter("<3@x>", None),
        ],
    )

    assert actions(results) == ["inserted", "inserted", "skipped", "skipped", "skipped", "inserted"]
    assert duplicates(results) == [None, None, 0, 1, 0, None]
    assert [result.matched_on for result in results] == [None, None, "primary", "secondary", "secondary", None]
    assert len(stored(database)) == 3


def test_duplicates_of_an_existing_entry_are_duplicates_of_each_other(database: Database) -> None:
    insert_entry(database, PKM, newsletter("<1@x>", "monday"))

    results = insert_entries(
        database, PKM, [newsletter("<1@x>", None), newsletter(None, "monday"), newsletter("<1@x>", "x")]
    )

    assert actions(results) == ["skipped"] * 3
    assert duplicates(results) == [None, 0, 0]


def test_later_items_are_applied_on_top_of_earlier_ones_in_order(database: Database) -> None:
    batch = [thought(1, f"version {n}", metadata={f"v{n}": n}) for n in range(4)]

    results = insert_entries(database, PKM, [*batch, thought(1, "version 3")])

    assert actions(results) == ["inserted", "updated", "updated", "updated", "updated"]
    assert [result.changed for result in results] == [True, True, True, True, False]
    assert duplicates(results) == [None, 0, 0, 0, 0]
    assert [(result.row or {})["clean_text"] for result in results] == [
        *(f"version {n}" for n in range(4)),
        "version 3",
    ]
    (row,) = stored(database)
    assert (row["clean_text"], row["metadata"]) == ("version 3", '{"v0":0,"v1":1,"v2":2,"v3":3}')
    assert [event.name for event in events(database)] == ["entry.inserted", *["entry.updated"] * 3]


def test_the_same_hint_in_one_batch_makes_no_duplicates_and_stays_with_the_first(database: Database) -> None:
    insert_entry(database, PKM, thought(0, "there before"))

    results = insert_entries(database, PKM, [thought(n, "ok") for n in (4, 3, 2, 1)] + [thought(5, "there before")])

    assert actions(results) == ["inserted"] * 5
    assert duplicates(results) == [None] * 5
    assert [row["idempotency_key_secondary"] for row in stored(database)] == [
        "hash of there before", "hash of ok", None, None, None, None,
    ]  # fmt: skip


@pytest.mark.parametrize("several", [
    pytest.param([thought(n, "ok") for n in range(1, 200)], id="one hint"),
    pytest.param([thought(n, f"text {n}") for n in range(1, 200)], id="nothing shared"),
    pytest.param([newsletter(f"<{n % 2}@x>", f"day {n}") for n in range(200)], id="two primary keys"),
])  # fmt: skip
def test_a_batch_takes_few_statements_whatever_its_items_share(database: Database, several: list[Payload]) -> None:
    insert_entry(database, PKM, thought(0, "ok"))
    statements: list[str] = []

    def trace(connection: Connection) -> None:
        sqlite_connection(connection.connection).set_trace_callback(statements.append)

    def count(_connection: object, _cursor: object, statement: str, *_more: object) -> None:
        statements.append(statement)

    # On SQLite, the driver itself runs most of them.
    where = (database.engine, "begin", trace) if database.is_sqlite else (Engine, "before_cursor_execute", count)
    event.listen(*where)
    try:
        results = insert_entries(database, PKM, several)
    finally:
        event.remove(*where)

    assert len(results) == len(several)
    # SQLite reports a statement again for each run of its triggers.
    assert 3 < len(set(statements)) < 20, statements


def test_the_first_item_of_a_batch_is_inserted_in_any_order_of_keys(database: Database) -> None:
    results = insert_entries(database, PKM, [newsletter("<1@x>", "zebra"), newsletter("<1@x>", "ant")])

    assert actions(results) == ["inserted", "skipped"]
    assert [row["idempotency_key_secondary"] for row in stored(database)] == ["zebra"]


@pytest.mark.parametrize("keys", [("p", "s"), (None, "s")], ids=["both keys", "the other key"])
def test_an_item_that_changes_nothing_yet_waits_for_one_that_will(
    database: Database, keys: tuple[str | None, str | None]
) -> None:
    """The second item equals the stored row, but no longer once the first was written."""
    make_policies(database)
    insert_entry(database, PKM, note("update_identity", "p", "s", title="old"))

    results = insert_entries(
        database,
        PKM,
        [note("update_identity", "p", None, title="new"), note("update_identity", *keys, title="old")],
    )

    assert [result.changed for result in results] == [True, True]
    assert [row["title"] for row in stored(database)] == ["old"]


@pytest.mark.parametrize("is_primary", [True, False], ids=["a primary key", "a secondary key"])
def test_a_free_key_goes_to_the_first_item_that_has_it(database: Database, is_primary: bool) -> None:
    """Also if the first one waits for its row and the second one, whose row the batch has inserted, does not."""

    def item(own: str, free: str | None) -> Payload:
        return note("update_identity", *((free, own) if is_primary else (own, free)))

    make_policies(database)
    insert_entry(database, PKM, item("first", None))

    insert_entries(database, PKM, [item("second", None), item("first", "free"), item("second", "free")])

    keys = ("idempotency_key_primary", "idempotency_key_secondary")
    first, second = ([row[name] for name in keys] for row in stored(database))
    assert "free" in first
    assert "free" not in second


def test_entries_without_a_policy_are_all_new_and_need_no_hints(database: Database) -> None:
    with database.write() as tx:
        # No policy is left whose secondary key is a hint.
        put_policy(
            tx, PKM, "telegram_thought_v1", source="telegram", content_type="thought/note", conflict_action="update"
        )
    plain: Payload = {"source": "manual", "title": "same"}

    for _ in range(2):
        assert actions(insert_entries(database, PKM, [plain, plain, thought(1)]))[:2] == ["inserted"] * 2
    assert len(stored(database)) == 5


def test_a_strict_item_of_a_batch_fails_alone(database: Database) -> None:
    insert_entries(database, PKM, [newsletter("<1@x>", "monday"), newsletter("<2@x>", "tuesday")])
    split = newsletter("<1@x>", "tuesday")

    results = insert_entries(database, PKM, [split, {**split, "strict": True}, newsletter("<3@x>", "friday")])

    assert actions(results) == ["skipped", "failed", "inserted"]
    assert results[1].json()["error"]["code"] == "conflict"  # type: ignore[index, call-overload]
    assert results[0].split_with == [stored(database)[1]["id"]]


def test_a_batch_has_a_maximum_size(database: Database) -> None:
    with pytest.raises(InvalidInput, match="at most 1000 items per batch, got 1001"):
        insert_entries(database, PKM, [thought(1)] * (ITEMS_MAX + 1))
    assert insert_entries(database, PKM, []) == []
    assert stored(database) == []


def test_an_entry_that_the_database_refuses_fails_alone(database: Database) -> None:
    """The refusal comes from a constraint that Onceward did not create."""
    table = PKM.table("entries", is_sqlite=database.is_sqlite)
    with database.write() as tx:
        if database.is_sqlite:
            tx.execute(
                text(
                    "CREATE TRIGGER no_spam BEFORE INSERT ON pkm_entries WHEN NEW.title = 'spam'"
                    " BEGIN SELECT RAISE(ABORT, 'no spam'); END"
                )
            )
        else:
            tx.execute(text(f"ALTER TABLE {table} ADD CONSTRAINT no_spam CHECK (title <> 'spam')"))

    results = insert_entries(
        database, PKM, [thought(1), thought(2, title="spam"), thought(1, "edited"), thought(3, title="ham")]
    )

    assert actions(results) == ["inserted", "failed", "updated", "inserted"]
    assert duplicates(results) == [None, None, 0, None]
    assert isinstance(results[1].error, WriteRefused)
    assert "spam" in str(results[1].error)
    assert len(events(database)) == 3
    with pytest.raises(WriteRefused):
        insert_entry(database, PKM, thought(4, title="spam"))


# One by one.

keys = st.sampled_from([None, "a", "b"])
versions: st.SearchStrategy[Json] = st.sampled_from([1, [2]])
times = st.sampled_from([None, "2026-11-16T03:26:00.000000Z", "2026-11-16T03:27:00.000000Z"])


def payloads(kinds: list[str | None]) -> st.SearchStrategy[Payload]:
    metadata = st.fixed_dictionaries({}, optional={"source_time": times, "m": versions, "n": versions})
    columns: Any = {"title": st.sampled_from(["x", "y"]), "metadata": metadata, "strict": st.just(True)}
    chosen = st.fixed_dictionaries({}, optional=columns)
    return st.builds(
        lambda kind, primary, secondary, more: note(kind, primary, secondary, **more),
        st.sampled_from(kinds),
        keys,
        keys,
        chosen,
    )


# Few policies and few keys in each, so that they meet.
batches = (
    st.lists(st.sampled_from([None, *KINDS]), min_size=1, max_size=2)
    .map(payloads)
    .flatmap(lambda one: st.lists(st.lists(one, min_size=1, max_size=12), min_size=1, max_size=3))
)


def summary_of(result: Inserted) -> dict[str, Any]:
    """Return the fields of a result, without those that the database assigns, and without its position."""
    shown = result.json()
    for name in ("id", "entry_id", "created_at", "updated_at", "event_id", "index", "duplicate_of_index", "split_with"):
        shown.pop(name, None)
    if result.error is not None:
        shown["error"] = type(result.error).__name__
    return {**shown, "has_event": result.event_id is not None, "is_split": bool(result.split_with)}


def content(database: Database, schema: Any) -> list[dict[str, Any]]:
    rows = stored(database, schema)
    assigned = ("id", "entry_id", "created_at", "updated_at")
    return [{name: value for name, value in row.items() if name not in assigned} for row in rows]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=60)
@given(batches)
def test_a_batch_does_what_its_items_would_do_one_by_one(database: Database, several: list[list[Payload]]) -> None:
    """Insert the batch in one schema and its items in the other: the results, rows and events are the same."""
    make_policies(database)
    with database.write() as tx:
        for schema in (PKM, PKM_TEST):
            tx.execute(text(f"DELETE FROM {schema.table('entries', is_sqlite=database.is_sqlite)}"))  # noqa: S608

    for batch in several:
        at_once = insert_entries(database, PKM, batch)
        one_by_one = [insert_entries(database, PKM_TEST, [payload])[0] for payload in batch]

        assert list(map(summary_of, at_once)) == list(map(summary_of, one_by_one))
        assert content(database, PKM) == content(database, PKM_TEST)
