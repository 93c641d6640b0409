"""A write, or its result, is lost: no second effect, no false conflict."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from tests.backends import Opener
from tests.faults.ledger.observed_store import ObservedStore

from onceward import Ledger, errors
from onceward.store import Store
from onceward.store.memory import MemoryStore
from onceward.testing import PinnedClock

LARGE = "x" * 100_000


class Losses:
    """Loses the writes or results that pass the point with this number, this many times."""

    def __init__(self, number: int | None, times: int) -> None:
        self.passed: list[str] = []
        self.lost: list[str] = []
        self._number = number
        self._left = times

    def __call__(self, name: str) -> None:
        if len(self.passed) == self._number and self._left:
            self._left -= 1
            self.lost.append(name)
            raise errors.StoreUnavailable(f"lost {name}")
        self.passed.append(name)


class Shop:
    """An effect of each kind, counted."""

    def __init__(self, **options: Any) -> None:
        self.runs = 0
        self.undone = 0
        self._raises: bool = options.pop("raises", False)
        self._large: bool = options.pop("large", False)
        self._options = options
        if options["effect"] == "compensatable":
            self._options["undo"] = self._undo

    def call(self, ledger: Ledger, key: str) -> str:
        try:
            return str(ledger.blocking.run(key, self._work, **self._options))
        except ZeroDivisionError:
            return "its own error"
        except errors.OncewardError as error:
            return error.code

    def _work(self) -> str:
        self.runs += 1
        if self._raises:
            raise ZeroDivisionError
        return f"run {self.runs}" + LARGE * self._large

    def _undo(self) -> None:
        self.undone += 1


KINDS: dict[str, Callable[[], Shop]] = {
    "pure": lambda: Shop(effect="pure"),
    "idempotent": lambda: Shop(effect="idempotent"),
    "irreversible": lambda: Shop(effect="irreversible"),
    "irreversible, large": lambda: Shop(effect="irreversible", large=True),
    "irreversible, raises": lambda: Shop(effect="irreversible", raises=True),
    "idempotent, raises": lambda: Shop(effect="idempotent", raises=True),
    "compensatable, raises": lambda: Shop(effect="compensatable", raises=True),
}


@pytest.fixture
def store(make_store: Opener, clock: PinnedClock) -> Store:
    return make_store(clock)


kinds = pytest.mark.parametrize("make_shop", KINDS.values(), ids=KINDS)


@kinds
def test_losing_a_write_or_its_result_does_not_change_what_the_caller_sees(
    store: Store, make_shop: Callable[[], Shop]
) -> None:
    lose_each_in_turn(store, make_shop, times=1)


@kinds
def test_losing_the_repeated_write_as_well_does_not_change_what_the_caller_sees(make_shop: Callable[[], Shop]) -> None:
    lose_each_in_turn(MemoryStore(), make_shop, times=3)


def lose_each_in_turn(store: Store, make_shop: Callable[[], Shop], times: int) -> None:
    undisturbed = make_shop()
    expected = [undisturbed.call(Ledger(store), "undisturbed") for _ in range(2)]
    for number in itertools.count():
        losses, shop = Losses(number, times), make_shop()
        ledger = Ledger(ObservedStore(store, losses))
        first, again = shop.call(ledger, f"loss {number}"), shop.call(ledger, f"loss {number}")
        while again == "store-unavailable" and losses.lost[0].endswith("chunks"):
            again = shop.call(ledger, f"loss {number}")  # a read is not repeated for the caller
        ledger.close()
        if not losses.lost:
            break

        assert [first, again] == expected, losses.lost
        assert (shop.runs, shop.undone) == (undisturbed.runs, undisturbed.undone), losses.lost
    assert number >= 6


@pytest.mark.parametrize("point", ["before", "after"])
def test_a_store_that_never_responds_is_unavailable_and_no_unclaimed_effect_runs(
    store: Store, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    monkeypatch.setattr("onceward.ledger.ledger.BEGIN_SECONDS", 0.1)
    shop = Shop(effect="irreversible")

    def hook(name: str) -> None:
        if name.startswith(point):
            raise errors.StoreUnavailable(f"lost {name}")

    ledger = Ledger(ObservedStore(store, hook))
    result = shop.call(ledger, "order 1")
    ledger.close()

    assert result == "store-unavailable"
    assert shop.runs == 0


def test_a_settle_whose_results_are_all_lost_is_still_recorded(store: Store) -> None:
    shop = Shop(effect="irreversible")

    def hook(name: str) -> None:
        if name == "after settle":
            raise errors.StoreUnavailable(f"lost {name}")

    ledger = Ledger(ObservedStore(store, hook), lease_seconds=0.1)
    first = shop.call(ledger, "order 1")
    ledger.close()

    assert first == "store-unavailable"
    assert shop.call(Ledger(store), "order 1") == "run 1"
    assert shop.runs == 1
