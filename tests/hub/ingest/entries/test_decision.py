"""The decision itself, row by row of its table, and what an update changes: pure."""

from __future__ import annotations

from typing import Any

import pytest

from onceward.core.json_text import written
from onceward.errors import InvalidInput
from onceward.hub.ingest.entries.columns import COLUMNS, METADATA_BYTES_MAX
from onceward.hub.ingest.entries.decision import (
    INSERT,
    INSERT_WITHOUT_SECONDARY,
    EntryDecision,
    changes,
    decide,
    is_stale,
)
from onceward.hub.ingest.entries.draft import Draft, draft_of
from onceward.hub.ingest.entries.policy import Action, Policy, Role

A, B = 1, 2


def policy(action: Action = "update", role: Role = "identity", fields: tuple[str, ...] | None = None) -> Policy:
    return Policy(7, "p", "notes", "note", action, fields, enabled=True, secondary_role=role)


@pytest.mark.parametrize("action", ["skip", "update"])
@pytest.mark.parametrize(
    ("role", "by_primary", "by_secondary", "matched_on", "split_with"),
    [
        ("identity", A, None, "primary", None),
        ("hint", A, None, "primary", None),
        ("identity", A, A, "primary", None),
        ("hint", A, A, "primary", None),
        ("identity", None, A, "secondary", None),
        ("identity", A, B, "primary", B),
        ("hint", A, B, "primary", None),
    ],
)
def test_an_existing_entry_is_skipped_or_updated_and_its_primary_key_wins(
    action: Action,
    role: Role,
    by_primary: int | None,
    by_secondary: int | None,
    matched_on: Any,
    split_with: int | None,
) -> None:
    decided = decide(policy(action, role), by_primary, by_secondary)

    assert decided == EntryDecision(action, A, matched_on, split_with)


@pytest.mark.parametrize("action", ["skip", "update"])
def test_a_new_entry_is_inserted_without_a_hint_that_another_entry_has(action: Action) -> None:
    assert decide(None, None, None) == INSERT
    for role in ("identity", "hint"):
        assert decide(policy(action, role), None, None) == INSERT
    assert decide(policy(action, "hint"), None, B) == INSERT_WITHOUT_SECONDARY


EARLY, LATE = "2026-11-16T03:26:00.000000Z", "2026-11-16T03:26:00.000001Z"


@pytest.mark.parametrize(
    ("stored", "sent", "stale"),
    [
        ((LATE, "a"), (EARLY, "a"), True),
        ((EARLY, "a"), (LATE, "a"), False),
        ((EARLY, "a"), (EARLY, "a"), False),
        ((EARLY, "b"), (EARLY, "a"), True),
        ((EARLY, "a"), (EARLY, "b"), False),
        ((EARLY, "a"), (EARLY, None), False),
        ((LATE, "a"), (EARLY, None), True),
        ((EARLY, None), (EARLY, "a"), False),
        ((EARLY, None), (EARLY, None), False),
        ((LATE, "a"), (None, "a"), False),
        ((None, "a"), (EARLY, "a"), False),
        (("9999", "a"), (EARLY, "a"), False),
        ((LATE, "a"), (EARLY.replace("0", "\u0660"), "a"), False),
        ((20261116, "a"), (EARLY, "a"), False),
    ],
)
def test_an_entry_older_than_the_stored_one_is_stale(
    stored: tuple[object, str | None], sent: tuple[object, str | None], stale: bool
) -> None:
    assert is_stale(*stored, *sent) is stale


# Changes of an update.


def row(**columns: Any) -> tuple[Any, ...]:
    known = {"entry_id": 1, "id": "u", "created_at": "c", "updated_at": "t", "source": "notes", "content_type": "note"}
    return tuple({"metadata": "{}", **known, **columns}.get(name) for name in COLUMNS)


def draft(fields: tuple[str, ...] | None = None, **columns: Any) -> Draft:
    sent = {"source": "notes", "content_type": "note", "idempotency_policy_key": "p", "idempotency_key_primary": "k"}
    return draft_of({**sent, **columns}, {"p": policy(fields=fields)})


def changed(stored: tuple[Any, ...], sent: Draft, *, free: bool = True) -> dict[str, Any]:
    return changes(stored, sent, primary_is_free=free, secondary_is_free=free)[0]


def test_an_update_changes_the_sent_columns_that_differ_including_null() -> None:
    there = row(title="old", author="same", url="kept", idempotency_key_primary="k")

    assert changed(there, draft(title="new", author="same", clean_text=None)) == {"title": "new"}
    assert changed(there, draft(url=None)) == {"url": None}
    assert changed(there, draft()) == {}


def test_columns_assigned_by_the_database_are_never_changed() -> None:
    there = row(idempotency_key_primary="k")

    assert changed(there, draft(id="x", entry_id=9, created_at="x", updated_at="x", idempotency_policy_id=7)) == {}


def test_update_fields_may_be_all_some_or_none() -> None:
    there = row(idempotency_key_primary=None)
    sent = {"title": "new", "author": "new"}

    assert changed(there, draft(None, **sent)) == {**sent, "idempotency_key_primary": "k"}
    assert changed(there, draft(("title",), **sent)) == {"title": "new", "idempotency_key_primary": "k"}
    assert changed(there, draft((), **sent)) == {}


def test_a_key_is_filled_if_it_is_null_and_free_and_is_never_rewritten() -> None:
    both = draft(idempotency_key_secondary="s")

    assert changed(row(), both) == {"idempotency_key_primary": "k", "idempotency_key_secondary": "s"}
    assert changed(row(), both, free=False) == {}
    assert changed(row(idempotency_key_primary="x", idempotency_key_secondary="y"), both) == {}


def test_metadata_is_merged_and_equal_json_is_not_a_change() -> None:
    there = row(metadata='{"a":{"x":1,"y":2},"l":[1,2]}', idempotency_key_primary="k")

    assert changed(there, draft(metadata={"a": {"y": 3}, "l": [3], "n": None})) == {
        "metadata": '{"a":{"x":1,"y":3},"l":[3],"n":null}'
    }
    assert changed(there, draft(metadata={"l": [1.0, 2], "a": {"y": 2}})) == {}
    assert changed(there, draft(metadata={"a": {"x": True}})) == {"metadata": '{"a":{"x":true,"y":2},"l":[1,2]}'}
    assert changed(there, draft(metadata={})) == {}
    assert changed(there, draft(metadata=None)) == {"metadata": "{}"}
    assert changed(row(idempotency_key_primary="k"), draft(metadata=None)) == {}


def test_metadata_does_not_grow_without_end() -> None:
    half = "x" * (METADATA_BYTES_MAX // 2)
    there = row(metadata=written({"a": half}), idempotency_key_primary="k")

    with pytest.raises(InvalidInput, match="metadata must be at most"):
        changed(there, draft(metadata={"b": half}))


def test_a_stale_update_changes_nothing_not_even_a_null_key() -> None:
    there = row(metadata=written({"source_time": LATE}), external_ref="a")
    sent = draft(metadata={"source_time": EARLY}, external_ref="b", title="new")

    assert changes(there, sent, primary_is_free=True, secondary_is_free=True) == ({}, True)
