"""Compensatable effects: an attempt is undone before the next one runs, however the undo itself ends."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from onceward import Ledger, current_claim, errors, open_ledger
from onceward.core.claim import Claim, Entry, Status
from onceward.core.outcome import Outcome
from onceward.ledger.run import SCOPE
from onceward.store.memory import MemoryStore
from onceward.testing import PinnedClock

LEASE_SECONDS = 30.0


class Trip:
    """Books things and cancels the bookings."""

    def __init__(self, *failures: BaseException) -> None:
        self.done: list[str] = []
        self._failures = list(failures)

    def book(self) -> str:
        self.done.append("book")
        return "booked"

    def undo(self) -> None:
        if self._failures:
            raise self._failures.pop(0)
        self.done.append("undo")


@pytest.fixture
def ledger(clock: PinnedClock) -> Ledger:
    return Ledger(MemoryStore(clock), lease_seconds=LEASE_SECONDS)


def abandon(ledger: Ledger, clock: PinnedClock) -> None:
    """Claim the key and do not renew it, like a process that was killed."""
    assert isinstance(ledger.blocking.begin(SCOPE, "trip", repeatable=True), Claim)
    clock.advance(LEASE_SECONDS + 1)


def run(ledger: Ledger, trip: Trip) -> str:
    return ledger.blocking.run("trip", trip.book, effect="compensatable", undo=trip.undo, not_done=(ConnectionError,))


def entry_of(ledger: Ledger) -> Entry:
    entry = ledger.blocking.read(SCOPE, "trip")
    assert entry is not None
    return entry


def test_a_failing_undo_is_not_taken_for_an_effect_that_did_nothing(ledger: Ledger, clock: PinnedClock) -> None:
    abandon(ledger, clock)
    trip = Trip(ConnectionError("the booking system is down"))

    with pytest.raises(ConnectionError):
        run(ledger, trip)

    assert entry_of(ledger).status is Status.IN_DOUBT
    assert trip.done == []


@pytest.mark.parametrize("interruption", [KeyboardInterrupt(), errors.StoreUnavailable("no answer")])
def test_an_interrupted_undo_is_left_to_the_next_holder(
    ledger: Ledger, clock: PinnedClock, interruption: BaseException
) -> None:
    abandon(ledger, clock)
    trip = Trip(interruption)
    with pytest.raises(type(interruption)):
        run(ledger, trip)
    clock.advance(LEASE_SECONDS + 1)

    value = run(ledger, trip)

    assert value == "booked"
    assert trip.done == ["undo", "book"]


def test_a_caller_that_loses_its_claim_during_an_undo_does_not_start_the_effect(
    ledger: Ledger, clock: PinnedClock
) -> None:
    abandon(ledger, clock)
    trip = Trip()

    def slow_undo() -> None:
        clock.advance(LEASE_SECONDS + 1)
        other = ledger.blocking.begin(SCOPE, "trip", repeatable=True)
        assert isinstance(other, Claim)
        ledger.blocking.settle(other, Outcome(body=b'"booked by another"'))

    value = ledger.blocking.run("trip", trip.book, effect="compensatable", undo=slow_undo)

    assert value == "booked by another"
    assert trip.done == []


def test_releasing_a_claim_that_took_over_does_not_make_the_key_look_fresh(ledger: Ledger, clock: PinnedClock) -> None:
    abandon(ledger, clock)
    claim = ledger.blocking.begin(SCOPE, "trip", repeatable=True)
    assert isinstance(claim, Claim)
    assert ledger.blocking.release(claim)

    trip = Trip()
    run(ledger, trip)

    assert trip.done == ["undo", "book"]


def test_an_undo_interrupted_after_an_exception_is_left_to_the_next_holder(ledger: Ledger, clock: PinnedClock) -> None:
    trip = Trip(KeyboardInterrupt())

    def fails() -> str:
        trip.book()
        raise ValueError("after booking")

    with pytest.raises(KeyboardInterrupt):
        ledger.blocking.run("trip", fails, effect="compensatable", undo=trip.undo)
    clock.advance(LEASE_SECONDS + 1)

    run(ledger, trip)

    assert trip.done == ["book", "undo", "book"]


def test_a_blocking_call_on_the_thread_of_a_loop_can_undo(ledger: Ledger, clock: PinnedClock) -> None:
    abandon(ledger, clock)
    trip = Trip()

    async def on_a_loop() -> None:
        run(ledger, trip)

    asyncio.run(on_a_loop())

    assert trip.done == ["undo", "book"]


def test_the_undo_of_a_decorated_function_gets_its_arguments(ledger: Ledger) -> None:
    undone: list[tuple[str, int]] = []

    def cancel(order_id: str, amount: int) -> None:
        undone.append((order_id, amount))

    @ledger.once(key="reserve:{order_id}", effect="compensatable", undo=cancel)
    def reserve(order_id: str, amount: int) -> None:
        raise ValueError(f"{order_id} was half reserved for {amount}")

    with pytest.raises(ValueError, match="half reserved"):
        reserve("42", amount=10)

    assert undone == [("42", 10)]


def test_a_bound_effect_that_committed_is_not_undone_because_its_commit_raised(tmp_path: Path) -> None:
    """The response to COMMIT was lost: the caller gets the recorded outcome, and nothing is undone."""
    file = tmp_path / "shop.db"
    undone: list[str] = []
    with open_ledger(f"sqlite:///{file}") as ledger, closing(sqlite3.connect(file)) as shop:

        def effect() -> None:
            with shop:
                bound = current_claim().bind(shop)
                bound.settle("paid")
            raise ConnectionError("the answer to COMMIT was lost")

        outcome: object = ledger.blocking.run(
            "pay", effect, effect="compensatable", undo=lambda: undone.append("undone")
        )

    assert outcome == "paid"
    assert undone == []
