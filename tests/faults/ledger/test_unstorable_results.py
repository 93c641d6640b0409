"""Results that cannot be stored: the effect counts as done, is never stuck and never runs again."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from onceward import Ledger, errors
from onceward.ledger.terms import EffectClass


@dataclass
class Refuses:
    """A value whose own code raises while it is being written."""

    field: int = 0

    def __getattribute__(self, name: str) -> object:
        raise RuntimeError(f"you may not have my {name}")


UNKEEPABLE: dict[str, Callable[[], object]] = {
    "a lock": threading.Lock,
    "an object": object,
    "a function": lambda: print,
    "an exception": lambda: ValueError("as a value"),
    "deep inside": lambda: {"deep": [1, (object(),)]},
    "a value that refuses": Refuses,
    "a generator": lambda: (number for number in range(3)),
}


@pytest.mark.parametrize("effect", ["pure", "idempotent", "irreversible"])
@pytest.mark.parametrize("make", UNKEEPABLE.values(), ids=UNKEEPABLE)
def test_a_result_that_cannot_be_written_settles_the_key_without_it(
    ledger: Ledger, effect: EffectClass, make: Callable[[], object]
) -> None:
    value, runs = make(), []

    def work() -> object:
        runs.append(1)
        return value

    assert ledger.blocking.run("order 1", work, effect=effect) is value

    for _ in range(2):
        with pytest.raises(errors.OutcomeNotKept):
            ledger.blocking.run("order 1", work, effect=effect)
    assert runs == [1]


@pytest.mark.parametrize("effect", ["idempotent", "irreversible"])
def test_a_result_over_the_limit_settles_the_key_without_it(ledger: Ledger, effect: EffectClass) -> None:
    runs: list[int] = []

    def work() -> str:
        runs.append(1)
        return "x" * 1000

    assert ledger.blocking.run("order 1", work, effect=effect, max_result_bytes=1001) == "x" * 1000

    with pytest.raises(errors.OutcomeNotKept):
        ledger.blocking.run("order 1", work, effect=effect, max_result_bytes=1001)
    assert runs == [1]


def test_a_result_that_would_be_endless_when_written_settles_the_key_without_it(ledger: Ledger) -> None:
    value: list[object] = []
    for _ in range(60):
        value = [value, value]

    assert ledger.blocking.run("order 1", lambda: value, effect="irreversible") is value

    with pytest.raises(errors.OutcomeNotKept):
        ledger.blocking.run("order 1", lambda: value, effect="irreversible")


def test_a_result_that_contains_itself_settles_the_key_without_it(ledger: Ledger) -> None:
    value: list[object] = []
    value.append(value)

    assert ledger.blocking.run("order 1", lambda: value, effect="irreversible") is value

    with pytest.raises(errors.OutcomeNotKept):
        ledger.blocking.run("order 1", lambda: value, effect="irreversible")


@pytest.mark.parametrize("size", [64 * 1024 - 3, 64 * 1024 - 2, 64 * 1024 - 1, 200_000, 3 * 1024 * 1024])
def test_a_large_result_is_stored_completely(ledger: Ledger, size: int) -> None:
    value = ("0123456789abcdef" * (size // 16 + 1))[:size]

    first = ledger.blocking.run("order 1", lambda: value, effect="irreversible")
    second = ledger.blocking.run("order 1", lambda: "another", effect="irreversible")

    assert first == second == value


def test_racing_callers_of_an_effect_with_an_unstorable_result_all_return(ledger: Ledger) -> None:
    started, go_on = threading.Event(), threading.Event()
    caught: list[str] = []

    def work() -> object:
        started.set()
        assert go_on.wait(10)
        return object()

    def wait_for_it() -> None:
        try:
            ledger.blocking.run("order 1", work, effect="irreversible")
        except errors.OutcomeNotKept as error:
            caught.append(error.code)

    first = threading.Thread(target=lambda: ledger.blocking.run("order 1", work, effect="irreversible"))
    first.start()
    assert started.wait(10)
    others = [threading.Thread(target=wait_for_it) for _ in range(3)]
    for other in others:
        other.start()
    go_on.set()
    for thread in (first, *others):
        thread.join()

    assert caught == ["outcome-not-kept"] * 3
