"""A crash at every boundary between the store and the effect, and at every boundary of the recovery from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from tests.backends import Opener
from tests.faults.ledger.crash_points import Boundaries, History, every_crash, every_two_crashes, life

from onceward import Ledger
from onceward.ledger.terms import EffectClass
from onceward.store import Store
from onceward.store.memory import MemoryStore
from onceward.testing import PinnedClock

LARGE = "x" * 100_000


@dataclass(frozen=True)
class Scenario:
    """The class of an effect, and its result if nothing crashes."""

    effect: EffectClass
    large: bool = False
    raises: bool = False

    def __str__(self) -> str:
        return f"{self.effect}{', large result' * self.large}{', raises' * self.raises}"

    def call(self, ledger: Ledger, key: str, boundaries: Boundaries, history: History) -> None:
        def effect() -> str:
            boundaries("before effect")
            history.events.append("effect")
            run = f"run {history.runs}"
            boundaries("after effect")
            if self.raises:
                raise ZeroDivisionError
            return run + LARGE * self.large

        def undo() -> None:
            boundaries("before undo")
            history.events.append("undo")
            boundaries("after undo")

        options: Any = {"undo": undo} if self.effect == "compensatable" else {}
        with history.recording(boundaries):
            history.results.append(ledger.blocking.run(key, effect, effect=self.effect, **options))


SCENARIOS = [
    *(Scenario(effect) for effect in ("pure", "idempotent", "compensatable", "irreversible")),
    Scenario("idempotent", large=True),
    Scenario("irreversible", large=True),
    Scenario("idempotent", raises=True),
    Scenario("compensatable", raises=True),
    Scenario("irreversible", raises=True),
]


scenarios = pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
deaths = pytest.mark.parametrize("others_are_dead", [True, False], ids=["proved dead", "lapsed"])


@deaths
@scenarios
def test_no_crash_breaks_the_guarantees(
    make_store: Opener, clock: PinnedClock, scenario: Scenario, others_are_dead: bool
) -> None:
    every_crash(lives_of(scenario, make_store(clock), clock, others_are_dead=others_are_dead))


@deaths
@scenarios
def test_no_crash_of_the_recovery_breaks_the_guarantees(scenario: Scenario, others_are_dead: bool) -> None:
    """Only in memory: there are many pairs of boundaries, and the contract shows that all stores behave alike."""
    clock = PinnedClock()

    every_two_crashes(lives_of(scenario, MemoryStore(clock), clock, others_are_dead=others_are_dead))


def lives_of(
    scenario: Scenario, store: Store, clock: PinnedClock, *, others_are_dead: bool
) -> Callable[[str, list[Boundaries]], None]:
    def live(key: str, lives: list[Boundaries]) -> None:
        history = History()
        for boundaries in lives:
            with life(store, boundaries, others_are_dead=others_are_dead) as ledger:
                scenario.call(ledger, key, boundaries, history)
            if not others_are_dead:
                clock.advance(ledger.lease_seconds)
        check(scenario, key, lives, history)

    return live


def check(scenario: Scenario, key: str, lives: list[Boundaries], history: History) -> None:
    at = f"{scenario}, crashed at {key}: {[each.passed for each in lives]}, {history}"
    last, again = history.results[-2:]

    assert len(history.values) <= 1, at
    if scenario.effect == "irreversible":
        assert history.runs <= 1, at
        assert again == "in-doubt" if not history.values else again in history.values, at
        assert last in {again, "its own error"}, at
    elif scenario.raises:
        assert {last, again} == {"its own error"}, at
    else:
        assert last == again, at
        assert history.values == {last}, at
        assert history.runs >= 1, at
    if scenario.effect == "compensatable":
        assert "effect, effect" not in ", ".join(history.events), f"not undone in between: {at}"
        assert history.events[-1] == ("undo" if scenario.raises else "effect"), at
    if not lives[0].crashed and not scenario.raises:
        assert history.runs == 1, at


CLAIM = ["before begin", "after begin"]
EFFECT = ["before effect", "after effect"]
APPEND = ["before append", "after append"]
SETTLE = ["before settle", "after settle"]
UNDO = [*CLAIM, "before undo", "after undo", *SETTLE]


@pytest.mark.parametrize(
    ("scenario", "expected"),
    [
        pytest.param(scenario, expected, id=str(scenario))
        for scenario, expected in (
            (Scenario("irreversible"), [*CLAIM, *EFFECT, *SETTLE]),
            (Scenario("idempotent", large=True), [*CLAIM, *EFFECT, *APPEND, *SETTLE]),
            (Scenario("irreversible", raises=True), [*CLAIM, *EFFECT, "before doubt", "after doubt"]),
            (Scenario("compensatable", raises=True), [*CLAIM, *EFFECT, *UNDO, "before not_done", "after not_done"]),
        )
    ],
)
def test_an_undisturbed_run_passes_exactly_these_boundaries(
    make_store: Opener, clock: PinnedClock, scenario: Scenario, expected: list[str]
) -> None:
    boundaries = Boundaries()

    with life(make_store(clock), boundaries, others_are_dead=False) as ledger:
        scenario.call(ledger, "order 1", boundaries, History())

    assert boundaries.passed == expected
