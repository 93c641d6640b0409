"""A worker that comes back after its claim was lost."""

from __future__ import annotations

import pytest

from onceward import Ledger, errors
from onceward.core.claim import Status
from onceward.core.outcome import INLINE_BYTES_MAX
from onceward.ledger.run import SCOPE
from onceward.store.memory import MemoryStore
from onceward.testing import FaultyStore, PinnedClock

LEASE_SECONDS = 30.0
RETAIN_SECONDS = 60.0


@pytest.fixture
def ledger(clock: PinnedClock) -> Ledger:
    return Ledger(MemoryStore(clock), lease_seconds=LEASE_SECONDS, retain_seconds=RETAIN_SECONDS)


def test_a_late_worker_is_not_given_the_outcome_of_another_call(ledger: Ledger, clock: PinnedClock) -> None:
    def slow() -> str:
        clock.advance(LEASE_SECONDS + 1)
        ledger.blocking.run("key", lambda: "taken over", effect="pure", fingerprint="mine")
        clock.advance(RETAIN_SECONDS + 1)
        ledger.blocking.run("key", lambda: "another call", effect="pure", fingerprint="another")
        return "late"

    with pytest.raises(errors.ClaimLost):
        ledger.blocking.run("key", slow, effect="pure", fingerprint="mine")


def test_a_large_result_that_comes_too_late_is_still_recorded_as_done(ledger: Ledger, clock: PinnedClock) -> None:
    large = "x" * (INLINE_BYTES_MAX + 1)

    def slow() -> str:
        clock.advance(LEASE_SECONDS + 1)
        with pytest.raises(errors.InDoubt):
            ledger.blocking.run("key", lambda: "never", effect="irreversible")
        return large

    assert ledger.blocking.run("key", slow, effect="irreversible") == large

    entry = ledger.blocking.read(SCOPE, "key")
    assert entry is not None
    assert entry.status is Status.COMPLETED
    with pytest.raises(errors.OutcomeNotKept):
        ledger.blocking.run("key", lambda: "never", effect="irreversible")


def test_a_late_worker_whose_outcome_expires_while_it_reads_raises_claim_lost(
    clock: PinnedClock,
) -> None:
    plain = MemoryStore(clock)
    store = FaultyStore(plain)
    ledger = Ledger(store, lease_seconds=LEASE_SECONDS, retain_seconds=RETAIN_SECONDS)

    def expire() -> None:
        clock.advance(RETAIN_SECONDS + 1)
        plain.purge(500)

    def slow() -> str:
        clock.advance(LEASE_SECONDS + 1)
        ledger.blocking.run("key", lambda: "x" * (INLINE_BYTES_MAX + 1), effect="pure")
        store.at("before-chunks", expire)
        return "late"

    with pytest.raises(errors.ClaimLost):
        ledger.blocking.run("key", slow, effect="pure")
