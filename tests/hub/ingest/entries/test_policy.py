"""Policies: what a new database has, and what may be put."""

from __future__ import annotations

import dataclasses
import threading
from typing import Any

import pytest
from sqlalchemy import text
from tests.hub.ingest.entries.payloads import newsletter, note, thought
from tests.waiting import SECONDS_MAX, until

from onceward.errors import Conflict, InvalidInput
from onceward.hub.db.engine import Database
from onceward.hub.ingest.entries.columns import COLUMNS, UPDATABLE
from onceward.hub.ingest.entries.insert import insert_entry
from onceward.hub.ingest.entries.policy import SEEDS, Policy, list_policies, put_policy
from onceward.hub.ingest.entries.schema import PKM, PKM_TEST, EntrySchema

GOOD: dict[str, Any] = {"source": "notes", "content_type": "note", "conflict_action": "skip"}


def policies(database: Database, schema: EntrySchema = PKM) -> dict[str, Policy]:
    with database.read() as tx:
        return {policy.policy_key: policy for policy in list_policies(tx, schema)}


def put(database: Database, policy_key: Any, **values: Any) -> Policy:
    with database.write() as tx:
        return put_policy(tx, PKM, policy_key, **{**GOOD, **values})


def test_a_new_database_has_the_same_policies_in_both_schemas(database: Database) -> None:
    assert tuple(policies(database).values()) == tuple(policies(database, PKM_TEST).values()) == SEEDS
    assert {policy.policy_key: (policy.conflict_action, policy.secondary_role, policy.enabled) for policy in SEEDS} == {
        "telegram_thought_v1": ("update", "hint", True),
        "telegram_link_v1": ("skip", "identity", True),
        "email_newsletter_v1": ("skip", "identity", True),
        "email_correspondence_thread_v1": ("update", "identity", True),
        "email_correspondence_thread_v2": ("update", "identity", False),
    }
    assert {policy.source for policy in SEEDS} == {"telegram", "email"}


def test_a_policy_is_created_and_changed_only_in_its_schema(database: Database) -> None:
    made = put(database, "notes_v1", source=" Notes ", content_type="Note / Memo", update_fields=["title", "title"])
    changed = put(
        database, "notes_v1", conflict_action="update", update_fields=[], enabled=False, secondary_role="hint"
    )

    assert made == Policy(made.policy_id, "notes_v1", "notes", "note/memo", "skip", ("title",), True, "identity")
    assert changed == Policy(made.policy_id, "notes_v1", "notes", "note", "update", (), False, "hint")
    assert policies(database)["notes_v1"] == changed
    assert "notes_v1" not in policies(database, PKM_TEST)
    assert changed.json()["update_fields"] == []
    assert policies(database)["telegram_link_v1"].json() == {
        "policy_id": 2,
        "policy_key": "telegram_link_v1",
        "source": "telegram",
        "content_type": "link",
        "conflict_action": "skip",
        "update_fields": None,
        "enabled": True,
        "secondary_role": "identity",
    }


def test_whitespace_around_a_name_is_ignored(database: Database) -> None:
    made = put(database, " notes_v1\n")

    assert (made.policy_key, put(database, "notes_v1").policy_id) == ("notes_v1", made.policy_id)
    insert_entry(database, PKM, note("notes_v1", "p"))
    with pytest.raises(Conflict, match="'notes_v1' has entries"):
        put(database, " notes_v1 ", source="memos")


def test_omitted_fields_stay_and_given_fields_are_set(database: Database) -> None:
    full = put(database, "notes_v1", update_fields=["title"], enabled=False, secondary_role="hint")

    assert put(database, "notes_v1") == full
    assert put(database, "notes_v1", update_fields=None) == dataclasses.replace(full, update_fields=None)
    assert put(database, "notes_v1", enabled=True) == dataclasses.replace(full, update_fields=None, enabled=True)
    assert put(database, "notes_v1", secondary_role="identity").secondary_role == "identity"


REFUSED: tuple[dict[str, Any], ...] = (
    {"policy_key": ""},
    {"policy_key": "k" * 129},
    {"policy_key": 5},
    {"source": " "},
    {"source": None},
    {"content_type": "note/"},
    {"content_type": 5},
    {"conflict_action": "delete"},
    {"conflict_action": None},
    {"secondary_role": "none"},
    {"enabled": 1},
    {"update_fields": "title"},
    {"update_fields": [1]},
    {"update_fields": {"title": 1}},
    *({"update_fields": ["title", name]} for name in [*COLUMNS, "colour"] if name not in UPDATABLE),
)


def test_an_invalid_policy_is_refused(database: Database) -> None:
    for values in REFUSED:
        with pytest.raises(InvalidInput) as refused:
            put(database, **{"policy_key": "notes_v1", **values})
        assert [name for name, _ in refused.value.fields] == [next(iter(values))]

    assert tuple(policies(database).values()) == SEEDS


def test_every_updatable_column_may_be_named(database: Database) -> None:
    assert put(database, "notes_v1", update_fields=list(UPDATABLE)).update_fields == UPDATABLE


def test_source_and_content_type_of_a_policy_with_entries_cannot_change(database: Database) -> None:
    put(database, "notes_v1")
    put(database, "notes_v1", source="memos")
    put(database, "notes_v1")
    insert_entry(database, PKM, note("notes_v1", "p"))

    for other in ({"source": "memos"}, {"content_type": "memo"}, {"content_type": "note/memo"}):
        with pytest.raises(Conflict, match="create another policy"):
            put(database, "notes_v1", **other)

    assert put(database, "notes_v1", enabled=False, conflict_action="update").source == "notes"


def test_disabling_or_enabling_a_policy_applies_from_the_next_insert(database: Database) -> None:
    news = {"source": "email", "content_type": "newsletter", "conflict_action": "skip"}
    put(database, "email_newsletter_v1", enabled=False, **news)

    with pytest.raises(InvalidInput, match="disabled"):
        insert_entry(database, PKM, newsletter("<1@x>", None))
    assert insert_entry(database, PKM_TEST, newsletter("<1@x>", None)).action == "inserted"

    put(database, "email_newsletter_v1", enabled=True, **news)
    assert insert_entry(database, PKM, newsletter("<1@x>", None)).action == "inserted"


def test_a_policy_that_has_entries_cannot_be_deleted(database: Database) -> None:
    insert_entry(database, PKM, thought(1))
    table = PKM.table("idempotency_policies", is_sqlite=database.is_sqlite)

    with pytest.raises(Exception, match=r"(?i)foreign key"), database.write() as tx:
        tx.execute(text(f"DELETE FROM {table} WHERE policy_id = 1"))  # noqa: S608  # our own name


def test_changing_a_policy_waits_for_inserts_in_progress(database: Database) -> None:
    """An insert that is not committed yet counts: its foreign key holds the policy."""
    put(database, "notes_v1")
    refused: list[Exception] = []

    def change() -> None:
        try:
            put(database, "notes_v1", source="memos")
        except Conflict as error:
            refused.append(error)

    late = threading.Thread(target=change)
    with database.write() as tx:
        table = PKM.table("entries", is_sqlite=database.is_sqlite)
        policy_id = list_policies(tx, PKM)[-1].policy_id
        tx.execute(
            text(
                f"INSERT INTO {table} (id, created_at, updated_at, source, idempotency_policy_id)"  # noqa: S608
                " VALUES ('01a1e322-d938-792b-844a-343051ebf399', '', '', 'notes', :policy_id)"
            ),
            {"policy_id": policy_id},
        )
        late.start()
    late.join(SECONDS_MAX)

    assert len(refused) == 1


def test_of_two_that_change_what_they_saw_the_second_gets_a_conflict(database: Database) -> None:
    put(database, "old_v1")
    for policy_key, seen in (("old_v1", policies(database)["old_v1"].text), ("new_v1", "")):
        problems: list[str] = []

        def second(policy_key: str = policy_key, seen: str = seen, problems: list[str] = problems) -> None:
            try:
                put(database, policy_key, seen=seen, enabled=False)
            except Conflict as error:
                problems.append(str(error))

        thread = threading.Thread(target=second)
        with database.write() as tx:
            put_policy(tx, PKM, policy_key, seen=seen, **{**GOOD, "conflict_action": "update"})
            thread.start()
            if not database.is_sqlite:
                # SQLite has one writer at a time, so the second one does not begin before the commit.
                until(lambda: _waits_for_a_lock(database), "the second one should wait")
        thread.join(SECONDS_MAX)

        assert ["is different by now" in problem for problem in problems] == [True]
        changed = policies(database)[policy_key]
        assert (changed.conflict_action, changed.enabled) == ("update", True)


def _waits_for_a_lock(database: Database) -> bool:
    query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    with database.read() as tx:
        return bool(tx.execute(text(query)).scalar())
