"""The matrix of keys on both databases: what two keys find, under each action and each role of the secondary key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from tests.hub.ingest.entries.payloads import KINDS, events, make_policies, note, stored

from onceward.errors import Conflict
from onceward.hub.db.engine import Database
from onceward.hub.ingest.entries.insert import Inserted, insert_entry
from onceward.hub.ingest.entries.preview import preview
from onceward.hub.ingest.entries.schema import PKM


@dataclass(frozen=True, slots=True)
class Case:
    """Stored keys (of A, and of B if there is one), the keys that arrive, and what they find.

    `hint` is the result if the secondary key is a hint; None means that the entry is refused.
    """

    name: str
    there: tuple[tuple[str | None, str | None], ...]
    comes: tuple[str | None, str | None]
    identity: str
    hint: str | None


INSERTED, WITHOUT_HINT = "inserted", "inserted without secondary"
PRIMARY, SECONDARY, SPLIT = "A by primary", "A by secondary", "A by primary, split with B"

# Seven situations; each under `skip` and under `update` are the fourteen.
CASES = (
    Case("nothing is there", (), ("p", "s"), INSERTED, INSERTED),
    Case("other keys are there", (("p0", "s0"),), ("p", "s"), INSERTED, INSERTED),
    Case("the primary is there", (("p", "s0"),), ("p", "s"), PRIMARY, PRIMARY),
    Case("both are there, in one entry", (("p", "s"),), ("p", "s"), PRIMARY, PRIMARY),
    Case("the secondary is there", (("p0", "s"),), ("p", "s"), SECONDARY, WITHOUT_HINT),
    Case("both are there, in two entries", (("p", "s0"), ("p0", "s")), ("p", "s"), SPLIT, PRIMARY),
    Case("the primary is there and none other comes", (("p", "s"),), ("p", None), PRIMARY, PRIMARY),
    Case("the secondary is there and none other comes", (("p", "s"),), (None, "s"), SECONDARY, None),
    Case("the secondary is there, alone", ((None, "s"),), ("p", "s"), SECONDARY, None),
    Case("keys of nothing come one by one", (("p0", None),), ("p", None), INSERTED, INSERTED),
    Case("the primary is there, alone", (("p", None),), ("p", "s"), PRIMARY, PRIMARY),
)


@pytest.mark.parametrize("kind", KINDS)
def test_two_keys_find_these_entries(database: Database, kind: str) -> None:
    action, role = kind.split("_")
    make_policies(database)
    for number, case in enumerate(CASES):
        expected = case.identity if role == "identity" else case.hint
        if expected is None:
            continue
        there = [insert_entry(database, PKM, _note(kind, number, keys, "old")) for keys in case.there]
        before, log = stored(database), events(database)
        sent = _note(kind, number, case.comes, "new")
        with database.read() as tx:
            would = preview(tx, PKM, sent)

        result = insert_entry(database, PKM, sent)

        about = f"{kind}: {case.name}"
        _check(result, there, expected, action, about)
        assert (would.action, would.changed, would.matched_on, would.split_with) == (
            result.action,
            result.changed,
            result.matched_on,
            result.split_with,
        ), about
        after = stored(database)
        assert len(after) == len(before) + (expected in {INSERTED, WITHOUT_HINT}), about
        assert len(events(database)) == len(log) + result.changed, about
        if result.action == "skipped":
            assert after == before, about
        others = [row for row in before if row["id"] != result.row["id"]]  # type: ignore[index]
        assert [row for row in after if row["id"] != result.row["id"]] == others, about  # type: ignore[index]


def _note(kind: str, number: int, keys: tuple[str | None, str | None], title: str) -> dict[str, Any]:
    primary, secondary = (None if key is None else f"{number}:{key}" for key in keys)
    return note(kind, primary, secondary, title=title)


def _check(result: Inserted, there: list[Inserted], expected: str, action: str, about: str) -> None:
    row = result.row or {}
    if expected in {INSERTED, WITHOUT_HINT}:
        assert (result.action, result.changed, result.matched_on) == ("inserted", True, None), about
        assert (row["idempotency_key_secondary"] is None) == (expected == WITHOUT_HINT or "one by one" in about), about
        return
    first = there[0].row or {}
    assert row["id"] == first["id"], about
    assert result.matched_on == ("secondary" if expected == SECONDARY else "primary"), about
    assert result.split_with == ([there[1].row["id"]] if expected == SPLIT else []), about  # type: ignore[index]
    assert ("split_with" in result.json()) == (expected == SPLIT), about
    if action == "skip":
        assert (result.action, result.changed, row["title"]) == ("skipped", False, "old"), about
        return
    assert (result.action, result.changed, row["title"]) == ("updated", True, "new"), about
    for name in ("id", "entry_id", "created_at"):
        assert row[name] == first[name], about
    assert str(row["updated_at"]) > str(first["updated_at"]), about
    for name in ("idempotency_key_primary", "idempotency_key_secondary"):
        # Filled where it was null, and never rewritten.
        assert first[name] is None or row[name] == first[name], about


@pytest.mark.parametrize("kind", KINDS)
def test_the_keys_of_one_policy_do_not_match_those_of_another(database: Database, kind: str) -> None:
    make_policies(database)

    results = [insert_entry(database, PKM, note(other, "p", "s")) for other in KINDS]
    again = insert_entry(database, PKM, note(kind, "p", "s"))

    assert [result.action for result in results] == ["inserted"] * 4
    assert again.outcome.row == results[KINDS.index(kind)].outcome.row


@pytest.mark.parametrize("kind", ["skip_identity", "update_identity"])
def test_a_strict_insert_is_refused_if_its_keys_belong_to_two_entries(database: Database, kind: str) -> None:
    make_policies(database)
    for keys in (("p", "s0"), ("p0", "s")):
        insert_entry(database, PKM, note(kind, *keys, title="old"))
    before, log = stored(database), events(database)

    for sent, strict in ((note(kind, "p", "s", title="new"), True), (note(kind, "p", "s", strict=True), False)):
        with pytest.raises(Conflict) as refused:
            insert_entry(database, PKM, sent, strict=strict)
        assert all(row["id"] in str(refused.value) for row in before)

    assert (stored(database), events(database)) == (before, log)


def test_the_same_text_in_two_messages_is_two_entries_and_the_later_one_has_no_hint(database: Database) -> None:
    make_policies(database)

    rows = [insert_entry(database, PKM, note("update_hint", f"p{n}", "same")).row or {} for n in range(3)]

    assert len({str(row["id"]) for row in rows}) == 3
    assert [row["idempotency_key_secondary"] for row in rows] == ["same", None, None]


def test_a_null_key_is_filled_by_an_update_once_and_then_finds_the_entry(database: Database) -> None:
    make_policies(database)
    first = insert_entry(database, PKM, note("update_identity", None, "s"))

    filled = insert_entry(database, PKM, note("update_identity", "p", "s"))
    other = insert_entry(database, PKM, note("update_identity", "p2", "s"))
    found = insert_entry(database, PKM, note("update_identity", "p", "s2"))

    assert (filled.action, filled.changed, filled.outcome.changed) == ("updated", True, ("idempotency_key_primary",))
    assert (other.matched_on, other.changed) == ("secondary", False)
    assert (found.matched_on, found.changed) == ("primary", False)
    assert {result.row["id"] for result in (first, filled, other, found) if result.row} == {(first.row or {})["id"]}


def test_a_null_key_is_not_filled_with_the_key_of_another_entry(database: Database) -> None:
    make_policies(database)
    insert_entry(database, PKM, note("update_hint", "p1", "h"))
    insert_entry(database, PKM, note("update_hint", "p2", None))

    result = insert_entry(database, PKM, note("update_hint", "p2", "h"))

    assert (result.action, result.changed) == ("updated", False)
    assert [row["idempotency_key_secondary"] for row in stored(database)] == ["h", None]
