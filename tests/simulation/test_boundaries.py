"""One fault at every boundary of a scenario, one after the other: enumerated, not sampled."""

from __future__ import annotations

import itertools

import pytest
from tests.simulation.faults import NETWORK, Fault, Script
from tests.simulation.jobs import Job, Mood
from tests.simulation.scenario import Story, replay

from onceward.ledger.terms import Effect

ANYWHERE = (Fault.CRASH, Fault.FREEZE, Fault.CANCEL)
MOODS = [(effect, Mood.WELL) for effect in Effect] + [
    (Effect.IDEMPOTENT, Mood.RAISES_AFTER),
    (Effect.COMPENSATABLE, Mood.RAISES_AFTER),
    (Effect.IRREVERSIBLE, Mood.RAISES_AFTER),
    (Effect.IRREVERSIBLE, Mood.STRAYS),
    (Effect.IRREVERSIBLE, Mood.NOT_DONE),
]


def story_of(effect: Effect, mood: Mood, *, large: bool = False) -> Story:
    job = Job("K1", (effect,), reconciled=effect is Effect.IRREVERSIBLE, mood=mood, large=large)
    return Story((job,), processes=2, callers=2, retain_seconds=60.0, wait_seconds=4.0, janitors=False)


def boundaries_of(story: Story) -> tuple[range, list[int]]:
    """Return all boundaries of the scenario without faults, and those at which a request is sent."""
    script = Script({})
    assert replay(story, script).broken is None
    assert script.count > 20
    return range(1, script.count + 1), script.sends


@pytest.mark.parametrize(("effect", "mood"), MOODS)
def test_a_fault_at_any_boundary_breaks_no_guarantee(effect: Effect, mood: Mood) -> None:
    story = story_of(effect, mood)
    boundaries, sends = boundaries_of(story)
    cases = [(fault, boundary) for fault in ANYWHERE for boundary in boundaries]
    cases += [(fault, boundary) for fault in sorted(NETWORK) for boundary in sends]

    for fault, boundary in cases:
        broken = replay(story, Script({boundary: fault})).broken
        assert broken is None, f"{fault} at boundary {boundary} of {len(boundaries)}: {broken}"


def test_a_crash_at_any_boundary_of_a_large_result_breaks_no_guarantee() -> None:
    story = story_of(Effect.IRREVERSIBLE, Mood.WELL, large=True)

    for boundary in boundaries_of(story)[0]:
        assert replay(story, Script({boundary: Fault.CRASH})).broken is None


@pytest.mark.parametrize("effect", [Effect.COMPENSATABLE, Effect.IRREVERSIBLE])
def test_two_crashes_at_any_two_boundaries_break_no_guarantee(effect: Effect) -> None:
    story = story_of(effect, Mood.WELL)

    for first, second in itertools.combinations(boundaries_of(story)[0], 2):
        broken = replay(story, Script({first: Fault.CRASH, second: Fault.CRASH})).broken
        assert broken is None, f"crashes at boundaries {first} and {second}: {broken}"
