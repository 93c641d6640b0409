"""The table of decisions, row by row."""

from __future__ import annotations

import pytest

from onceward.turns import Decision, settled_decision

SUPERSEDE, ABSORB, QUEUE, FORCE = Decision.SUPERSEDE, Decision.ABSORB, Decision.QUEUE, Decision.FORCE_COMPLETE

# By what is wanted: nothing done yet, a side effect executed, commit point reached, others waiting.
TABLE = {
    None: (SUPERSEDE, QUEUE, QUEUE, QUEUE),
    SUPERSEDE: (SUPERSEDE, SUPERSEDE, QUEUE, QUEUE),
    ABSORB: (ABSORB, ABSORB, QUEUE, QUEUE),
    QUEUE: (QUEUE, QUEUE, QUEUE, QUEUE),
    FORCE: (FORCE, FORCE, FORCE, FORCE),
}


@pytest.mark.parametrize("wanted", list(TABLE), ids=str)
def test_the_decision_follows_the_table(wanted: Decision | None) -> None:
    fresh, effects, committed, queued = TABLE[wanted]

    assert settled_decision(wanted, commit_point=False, effects_started=0)[0] is fresh
    assert settled_decision(wanted, commit_point=False, effects_started=2)[0] is effects
    assert settled_decision(wanted, commit_point=True, effects_started=0)[0] is committed
    assert settled_decision(wanted, commit_point=True, effects_started=2)[0] is committed
    assert settled_decision(wanted, commit_point=False, effects_started=0, queued=True)[0] is queued


@pytest.mark.parametrize("wanted", [None, SUPERSEDE, ABSORB], ids=str)
def test_an_overruled_decision_has_a_reason(wanted: Decision | None) -> None:
    assert settled_decision(wanted, commit_point=False, effects_started=0)[1] is None
    _, reason = settled_decision(wanted, commit_point=True, effects_started=1)

    assert reason is not None
    assert "commit point" in reason
    assert wanted is None or f"{wanted} became QUEUE" in reason


def test_the_default_names_the_side_effect_it_waits_for() -> None:
    assert settled_decision(None, commit_point=False, effects_started=1) == (
        QUEUE,
        "the running turn has executed a side effect",
    )
