"""Turns for operators: newest first, and the turns of a group."""

from __future__ import annotations

import pytest
from sqlalchemy import text

from onceward.errors import InvalidInput
from onceward.hub.db.engine import Database
from onceward.hub.turns.model import history
from onceward.hub.turns.model.history import newest_turns, turns_of_group
from onceward.hub.turns.model.turn import find_turn

_INSERT = text("""
    INSERT INTO turns (id, turn_group_id, principal, tenant_id, agent_id, customer_id, channel, session_key, state,
                       accumulate_until, superseded_by, created_at, updated_at)
    VALUES (:id, :group, :principal, 't', 'a', 'c', 'api', :id, :state, '', :by, '', '')
""")


def add(database: Database, turn_id: str, group: str, by: str | None = None, principal: str = "ada") -> None:
    state = "superseded" if by else "complete"
    values = {"id": turn_id, "group": group, "principal": principal, "state": state, "by": by}
    with database.write() as tx:
        tx.execute(_INSERT, values)


def test_the_newest_turns_come_first_page_by_page_and_of_one_principal(database: Database) -> None:
    for number in range(5):
        add(database, f"turn_{number}", f"grp_{number}", principal="ada" if number % 2 else "grace")
    with database.read() as tx:
        first = newest_turns(tx, 3)
        second = newest_turns(tx, 3, first.next_after or "")
        own = newest_turns(tx, 10, principal="ada")
        with pytest.raises(InvalidInput):
            newest_turns(tx, 3, "x")

    assert [turn.id for turn in first.items] == ["turn_4", "turn_3", "turn_2"]
    assert [turn.id for turn in second.items] == ["turn_1", "turn_0"]
    assert second.next_after is None
    assert [turn.id for turn in own.items] == ["turn_3", "turn_1"]


def test_a_search_for_one_principal_is_bounded(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "SEARCHED_MAX", 2)
    add(database, "turn_old", "grp_old")
    for number in range(3):
        add(database, f"turn_{number}", f"grp_{number}", principal="grace")
    with database.read() as tx:
        assert newest_turns(tx, 10, principal="ada").items == []


def test_a_chain_begins_with_the_first_turn_whichever_is_asked_for(database: Database) -> None:
    add(database, "turn_a", "grp_a", by="turn_b")
    add(database, "turn_b", "grp_a", by="turn_c")
    add(database, "turn_c", "grp_a")
    add(database, "turn_retry", "grp_a")
    with database.read() as tx:
        found = {name: find_turn(tx, f"turn_{name}") for name in ("a", "b", "c", "retry")}
        groups = {name: [one.id for one in turns_of_group(tx, turn)] for name, turn in found.items() if turn}

    turns = ["turn_a", "turn_b", "turn_c"]
    assert groups == {"a": turns, "b": turns, "c": turns, "retry": [*turns, "turn_retry"]}
