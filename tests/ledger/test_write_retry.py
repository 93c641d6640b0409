"""Retries of a failing store, and claims that are released without an outcome."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack

import pytest

from onceward import Ledger
from onceward.core.claim import Busy, Claim, InDoubt, Replay, Status
from onceward.core.outcome import Outcome
from onceward.errors import InvalidOption, StoreUnavailable
from onceward.ledger.terms import EffectClass
from onceward.store.memory import MemoryStore
from onceward.testing import FaultyStore, PinnedClock

Verb = Callable[[Ledger, Claim], Awaitable[object]]


@pytest.fixture
def store(clock: PinnedClock) -> FaultyStore:
    return FaultyStore(MemoryStore(clock))


@pytest.fixture
def ledger(store: FaultyStore) -> Iterator[Ledger]:
    with Ledger(store, lease_seconds=300, patience_seconds=0.05) as ledger:
        yield ledger


def begun(ledger: Ledger, *, repeatable: bool = True) -> Claim:
    found = ledger.blocking.begin("s", "k", repeatable=repeatable)
    assert isinstance(found, Claim)
    return found


# Letting go.


def test_after_a_lapse_the_next_caller_takes_over_at_once(ledger: Ledger) -> None:
    first = begun(ledger)
    assert isinstance(ledger.blocking.begin("s", "k", repeatable=True), Busy)

    assert asyncio.run(ledger.lapse(first))
    second = begun(ledger)

    assert second.took_over
    assert second.version > first.version
    assert second.attempt == first.attempt + 1


def test_a_lapsed_claim_can_still_be_settled_until_another_caller_takes_over(ledger: Ledger) -> None:
    claim = begun(ledger)
    asyncio.run(ledger.lapse(claim))

    assert asyncio.run(ledger.settle(claim, Outcome(body=b"late")))
    assert isinstance(ledger.blocking.begin("s", "k", repeatable=True), Replay)


def test_a_lapsed_irreversible_claim_becomes_a_doubt_and_not_a_second_run(ledger: Ledger) -> None:
    asyncio.run(ledger.lapse(begun(ledger, repeatable=False)))

    assert isinstance(ledger.blocking.begin("s", "k", repeatable=False), InDoubt)


def test_releasing_a_lost_claim_does_nothing(ledger: Ledger) -> None:
    first = begun(ledger)
    asyncio.run(ledger.lapse(first))
    second = begun(ledger)

    assert not asyncio.run(ledger.lapse(first))
    entry = ledger.blocking.read("s", "k")
    assert entry is not None
    assert (entry.version, entry.status) == (second.version, Status.IN_PROGRESS)
    assert isinstance(ledger.blocking.begin("s", "k", repeatable=True), Busy), "the new holder's lease stands"


# Patience.

verbs = pytest.mark.parametrize(
    "verb",
    [
        lambda ledger, _: ledger.begin("s", "other", repeatable=True),
        lambda ledger, claim: ledger.renew(claim),
        lambda ledger, claim: ledger.lapse(claim),
        lambda ledger, claim: ledger.settle(claim, Outcome(body=b"x")),
        lambda ledger, claim: ledger.fail(claim, "why"),
        lambda ledger, claim: ledger.doubt(claim, "why"),
        lambda ledger, claim: ledger.append(claim, 1, [b"x"]),
    ],
    ids=["begin", "renew", "lapse", "settle", "fail", "doubt", "append"],
)


@verbs
def test_an_unavailable_store_is_retried_until_patience_ends(
    store: FaultyStore, ledger: Ledger, verb: Verb, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = begun(ledger)
    asked = len(store.points)
    # Time advances with each read of the clock, so that a busy machine does not cause a timeout.
    looks = itertools.count()
    monkeypatch.setattr(ledger._dispatcher, "monotonic", lambda: next(looks) * 0.005)

    async def main() -> None:
        await verb(ledger, claim)

    with store.unavailable():
        start = time.monotonic()
        with pytest.raises(StoreUnavailable):
            asyncio.run(main())
        seconds = time.monotonic() - start

    assert seconds < 60, "far less than the lease of 300 s"
    assert store.points[asked:].count("before-commit") >= 2, "it was asked more than once"


@verbs
def test_a_store_that_comes_back_in_time_is_not_noticed(store: FaultyStore, verb: Verb) -> None:
    with Ledger(store, patience_seconds=10) as ledger:
        claim = begun(ledger)
        store.lose_request(times=1)
        store.lose_answer(times=1)

        async def main() -> None:
            await verb(ledger, claim)

        asyncio.run(main())


@verbs
def test_without_patience_a_write_is_sent_once(store: FaultyStore, verb: Verb) -> None:
    with Ledger(store, patience_seconds=0) as ledger:
        claim = begun(ledger)
        asked = store.points.count("before-commit")

        async def main() -> None:
            await verb(ledger, claim)

        with store.unavailable(), pytest.raises(StoreUnavailable):
            asyncio.run(main())

    assert store.points.count("before-commit") == asked + 1


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf"), "5", True])
def test_patience_is_a_number_of_seconds(seconds: float) -> None:
    with pytest.raises(InvalidOption, match="patience_seconds"):
        Ledger(MemoryStore(), patience_seconds=seconds)


@pytest.mark.parametrize(("effect", "then"), [("irreversible", "in doubt"), ("idempotent", "may run again")])
def test_an_error_while_recording_says_that_the_effect_ran(effect: EffectClass, then: str) -> None:
    """A caller would not know what to do if the error were the same as when nothing ran."""
    store = FaultyStore(MemoryStore())
    with Ledger(store, patience_seconds=0) as ledger, ExitStack() as stack:
        with pytest.raises(StoreUnavailable) as after:
            ledger.blocking.run("after", lambda: stack.enter_context(store.unavailable()), effect=effect)
        with pytest.raises(StoreUnavailable) as before:
            ledger.blocking.run("before", lambda: None, effect=effect)

    assert [then in note for note in after.value.__notes__] == [True]
    assert not hasattr(before.value, "__notes__")
