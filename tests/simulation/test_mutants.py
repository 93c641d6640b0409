"""A simulator that finds nothing proves nothing: each planted bug is caught, and the same seeds pass without it."""

from __future__ import annotations

import pytest
from tests.simulation.mutants import MUTANTS, Mutant
from tests.simulation.scenario import simulate

SEEDS_MAX = 1_000


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name.replace(" ", "-"))
def test_a_planted_bug_is_caught(mutant: Mutant) -> None:
    with mutant.planted():
        caught = next((seed for seed in range(SEEDS_MAX) if simulate(seed, focus=mutant.focus).broken), None)

    assert caught is not None, f"{SEEDS_MAX} seeds did not show it: {mutant.name}"
    assert simulate(caught, focus=mutant.focus).broken is None
