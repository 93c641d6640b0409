"""The testing kit: faults occur exactly where and when they were requested."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest

from onceward import Ledger, errors, open_store
from onceward.core.claim import Status
from onceward.ledger.run import SCOPE
from onceward.ledger.terms import EffectClass
from onceward.store import Store
from onceward.testing import FaultyStore, fault_at, reached, thaw, wait_until_frozen
from onceward.testing.faults import POINTS


@pytest.fixture(params=["memory:", "sqlite:///{}"])
def plain_store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return open_store(request.param.format(tmp_path / "ledger.db"))


@pytest.fixture
def store(plain_store: Store) -> FaultyStore:
    return FaultyStore(plain_store)


@pytest.fixture
def ledger(store: FaultyStore) -> Iterator[Ledger]:
    with Ledger(store) as ledger:
        yield ledger


class Charge:
    def __init__(self) -> None:
        self.runs = 0

    def __call__(self) -> int:
        self.runs += 1
        return self.runs


def test_without_faults_every_call_goes_through(ledger: Ledger, store: FaultyStore) -> None:
    assert ledger.blocking.run("order", Charge(), effect="irreversible") == 1
    assert ledger.blocking.run("order", Charge(), effect="irreversible") == 1
    assert ledger.blocking.scan().entries != ()
    assert ledger.blocking.read(SCOPE, "order") is not None
    assert ledger.blocking.purge() == 0
    assert [point for point in store.points if point.startswith("after-")][:4] == [
        "after-begin",
        "after-commit",
        "after-settle",
        "after-commit",
    ]
    assert set(store.points) <= POINTS


@pytest.mark.parametrize("word", ["begin", "settle", "commit"])
@pytest.mark.parametrize("lose", [FaultyStore.lose_request, FaultyStore.lose_answer])
def test_a_lost_write_is_repeated_and_the_effect_is_not(
    ledger: Ledger, store: FaultyStore, lose: object, word: str
) -> None:
    assert callable(lose)
    lose(store, word)
    charge = Charge()

    assert ledger.blocking.run("order", charge, effect="irreversible") == 1
    assert charge.runs == 1
    assert store.points.count("before-commit") == 3


def test_a_write_with_a_lost_result_was_applied_and_a_lost_write_was_not(
    store: FaultyStore, plain_store: Store
) -> None:
    with Ledger(store) as ledger, Ledger(plain_store) as beside:
        seen: list[object] = []
        store.lose_request("settle")
        store.lose_answer("settle")
        store.at("before-settle", lambda: seen.append(beside.blocking.read(SCOPE, "order")), times=3)

        ledger.blocking.run("order", Charge(), effect="pure")

    # Faults of a point happen in their order: first the request is lost, then the entry is read twice.
    assert [getattr(entry, "status", None) for entry in seen] == [Status.IN_PROGRESS, Status.COMPLETED]


def test_an_unavailable_store_fails_every_call_without_running_it(ledger: Ledger, store: FaultyStore) -> None:
    with store.unavailable(), pytest.raises(errors.StoreUnavailable):
        ledger.blocking.scan()

    assert ledger.blocking.scan().entries == ()


def test_a_custom_function_runs_at_its_point_the_given_number_of_times(ledger: Ledger, store: FaultyStore) -> None:
    passed: list[str] = []
    store.at("after-begin", lambda: passed.append("claimed"), times=2)

    for number in range(3):
        ledger.blocking.run(f"order {number}", Charge(), effect="pure")

    assert passed == ["claimed", "claimed"]


def test_an_unknown_point_is_refused(store: FaultyStore) -> None:
    with pytest.raises(errors.InvalidOption, match="before-X or after-X"):
        store.lose_answer("comit")


def test_an_unknown_process_fault_is_refused() -> None:
    with pytest.raises(errors.InvalidOption):
        fault_at("charged", "explode")  # type: ignore[arg-type]
    with pytest.raises(errors.InvalidOption):
        fault_at("charged", "crash", nth=0)


def test_a_custom_point_does_nothing_without_a_fault() -> None:
    reached("charged")


def test_a_store_that_cannot_bind_says_so() -> None:
    with pytest.raises(errors.InvalidOption, match="SQLite or PostgreSQL"):
        FaultyStore(open_store("memory:")).bind(object())


class Shop:
    """A SQLite ledger, a file of charges, and child processes that share them."""

    def __init__(self, folder: Path) -> None:
        self.url = f"sqlite:///{folder / 'ledger.db'}"
        self.charges = folder / "charges"
        self.charges.touch()

    def child(self, effect: EffectClass, point: str, fault: Literal["crash", "freeze"]) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("charging_process.py")), self.url, str(self.charges), effect],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | fault_at(point, fault),
        )

    def charged(self) -> int:
        return len(self.charges.read_text().splitlines())

    def ask(self, effect: EffectClass) -> str:
        with Ledger(open_store(self.url), lease_seconds=0.5) as ledger:
            return ledger.blocking.run("order", lambda: "receipt of the parent", effect=effect)


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


def ended(child: subprocess.Popen[str]) -> int:
    child.communicate()
    return child.returncode


@pytest.mark.parametrize(
    ("point", "charges"), [("after-begin", 0), ("charging", 0), ("charged", 1), ("before-settle", 1)]
)
def test_a_process_that_crashes_before_its_settle_leaves_a_doubt(shop: Shop, point: str, charges: int) -> None:
    assert ended(shop.child("irreversible", point, "crash")) == -signal.SIGKILL

    with pytest.raises(errors.InDoubt):
        shop.ask("irreversible")
    assert shop.charged() == charges


def test_a_process_that_crashes_after_its_settle_leaves_its_outcome(shop: Shop) -> None:
    assert ended(shop.child("irreversible", "after-settle", "crash")) == -signal.SIGKILL

    assert shop.ask("irreversible") == "receipt of the child"
    assert shop.charged() == 1


def test_a_process_that_crashes_before_it_claims_leaves_nothing(shop: Shop) -> None:
    assert ended(shop.child("irreversible", "before-begin", "crash")) == -signal.SIGKILL

    assert shop.ask("irreversible") == "receipt of the parent"


def test_a_frozen_process_gets_the_outcome_of_the_process_that_took_over(shop: Shop) -> None:
    child = shop.child("idempotent", "charged", "freeze")
    wait_until_frozen(child)

    assert shop.ask("idempotent") == "receipt of the parent"

    thaw(child)
    out, _ = child.communicate()
    assert out == "receipt of the parent"


def test_waiting_for_a_process_that_does_not_freeze_is_an_error(shop: Shop) -> None:
    child = shop.child("idempotent", "charged", "crash")

    with child, pytest.raises(AssertionError, match="instead of freezing"):
        wait_until_frozen(child)
