"""The age of a claim for reconcile hooks: by the store's clock, and only where it is known."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from onceward import Ledger, errors, verdict
from onceward.core.claim import Claim, Entry
from onceward.ledger.doubts import at_store_time, claim_age_seconds
from onceward.store.memory import MemoryStore
from onceward.store.sqlite import SqliteStore
from onceward.testing import PinnedClock


@pytest.fixture
def entry() -> Entry:
    ledger = Ledger(MemoryStore(PinnedClock()))
    claim = ledger.blocking.begin("call", "k", repeatable=False)
    ledger.close()
    assert isinstance(claim, Claim)
    return claim.entry


def test_the_age_counts_from_the_claim(entry: Entry) -> None:
    with at_store_time(entry.claimed_at + 90_000_000):
        assert claim_age_seconds(entry) == 90.0

    assert claim_age_seconds(entry) is None


def test_the_age_of_a_later_attempt_that_did_not_record_its_time_is_not_known(entry: Entry) -> None:
    """A process of schema 1 records only the first attempt, which is too early a time."""
    with at_store_time(entry.claimed_at + 90_000_000):
        assert claim_age_seconds(replace(entry, attempt=2)) is None
        assert claim_age_seconds(replace(entry, claimed_at=0)) is None


@pytest.mark.parametrize("store", ["memory", "sqlite"])
@pytest.mark.parametrize("blocking", [True, False])
def test_a_hook_sees_the_time_of_the_store(tmp_path: Path, store: str, blocking: bool) -> None:
    clock = PinnedClock()
    ledger = Ledger(MemoryStore(clock) if store == "memory" else SqliteStore(tmp_path / "ledger.db", clock=clock))
    ages: list[float | None] = []

    def lost() -> None:
        raise TimeoutError("the answer never came")

    async def reconcile(entry: Entry) -> verdict.Verdict:
        ages.append(claim_age_seconds(entry))
        return verdict.unknown

    with pytest.raises(TimeoutError):
        ledger.blocking.run("k", lost, effect="irreversible")
    clock.advance(60)

    def call() -> None:
        if blocking:
            ledger.blocking.run("k", lost, effect="irreversible", reconcile=reconcile)
        else:
            asyncio.run(ledger.run("k", lost, effect="irreversible", reconcile=reconcile))

    with pytest.raises(errors.InDoubt):
        call()
    ledger.close()

    assert ages == [60.0]
