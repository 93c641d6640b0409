"""What a process remembers of its claims: what is under way, and not without end."""

from __future__ import annotations

import pytest
from tests.store.gate import begin, settle

from onceward.core.claim import Answer, Ref, apply
from onceward.store import held
from onceward.store.held import Held


def claimed(key: str) -> Answer:
    return Answer(True, apply(None, begin(key), 1, 1), 1)


def test_a_claim_is_remembered_until_it_is_settled() -> None:
    remembered, ref, answer = Held(), Ref("s", "a"), claimed("a")
    remembered.note([ref], [answer])
    assert remembered.get(ref) == answer.entry

    remembered.note([ref], [Answer(True, apply(answer.entry, settle("a", 1), 2, 1), 2)])
    assert remembered.get(ref) is None


def test_more_than_a_process_has_at_a_time_is_not_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held, "HELD_MAX", 3)
    remembered, refs = Held(), [Ref("s", f"{number}") for number in range(20)]
    for ref in refs:
        remembered.note([ref], [claimed(ref.key)])

    assert sum(remembered.get(ref) is not None for ref in refs) <= 4
