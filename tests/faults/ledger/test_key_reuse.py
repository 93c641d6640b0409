"""Same key, other arguments: refused, and the effect of the first call stays the only one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from onceward import Ledger, errors
from onceward.ledger.terms import EffectClass
from onceward.testing import PinnedClock

EFFECTS = ["pure", "idempotent", "irreversible"]


@pytest.mark.parametrize("effect", EFFECTS)
def test_other_arguments_under_a_used_key_are_refused(ledger: Ledger, effect: EffectClass) -> None:
    runs: list[int] = []

    @ledger.once(key="charge:{order_id}", effect=effect)
    def charge(order_id: str, amount: int) -> int:
        assert order_id
        runs.append(amount)
        return amount

    assert charge("a", 10) == 10
    with pytest.raises(errors.KeyReused):
        charge("a", 11)
    assert charge("a", amount=10) == 10
    assert charge("b", 11) == 11
    assert runs == [10, 11]


@pytest.mark.parametrize("effect", EFFECTS)
def test_other_arguments_are_refused_after_a_failure_and_in_doubt_as_well(ledger: Ledger, effect: EffectClass) -> None:
    def fail() -> None:
        raise RuntimeError("after the work")

    with pytest.raises(RuntimeError):
        ledger.blocking.run("order 1", fail, effect=effect, fingerprint={"amount": 10})

    with pytest.raises(errors.KeyReused):
        ledger.blocking.run("order 1", lambda: 1, effect=effect, fingerprint={"amount": 11})


def test_other_arguments_are_refused_while_the_first_call_runs(ledger: Ledger) -> None:
    def first() -> str:
        with pytest.raises(errors.KeyReused):
            ledger.blocking.run("order 1", lambda: "second", effect="idempotent", fingerprint=2)
        return "first"

    assert ledger.blocking.run("order 1", first, effect="idempotent", fingerprint=1) == "first"


def test_the_key_is_free_for_other_arguments_once_its_retention_is_over(
    open_ledger: Callable[[], Ledger], clock: PinnedClock
) -> None:
    ledger = open_ledger()
    ledger.blocking.run("order 1", lambda: 1, effect="irreversible", fingerprint=1, retain_seconds=60)

    clock.advance(60)

    assert ledger.blocking.run("order 1", lambda: 2, effect="irreversible", fingerprint=2) == 2


def test_two_functions_that_share_a_key_by_mistake_are_told_apart(ledger: Ledger) -> None:
    @ledger.once(key="order:{order_id}", effect="irreversible")
    def charge(order_id: str) -> str:
        return f"charged {order_id}"

    @ledger.once(key="order:{order_id}", effect="irreversible")
    def ship(order_id: str) -> str:
        return f"shipped {order_id}"

    assert charge("a") == "charged a"
    with pytest.raises(errors.KeyReused):
        ship("a")
