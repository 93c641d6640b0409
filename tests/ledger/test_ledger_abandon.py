"""`Ledger.abandon` ends a claim in place of its holder, and never one whose holder may still work."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing

import pytest
from tests.backends import Opener

from onceward import Ledger
from onceward.core.claim import Claim, Status
from onceward.core.outcome import Outcome
from onceward.errors import InvalidKey
from onceward.testing import PinnedClock


@pytest.fixture
def ledger(make_store: Opener, clock: PinnedClock) -> Iterator[Ledger]:
    with closing(Ledger(make_store(clock), lease_seconds=30, retain_seconds=60)) as ledger:
        yield ledger


def held(ledger: Ledger, *, repeatable: bool) -> Claim:
    claim = ledger.blocking.begin("call", "k", repeatable=repeatable)
    assert isinstance(claim, Claim)
    return claim


def status(ledger: Ledger) -> tuple[Status, str]:
    entry = ledger.blocking.read("call", "k")
    assert entry is not None
    return entry.status, entry.note


@pytest.mark.parametrize("repeatable", [True, False])
def test_a_claim_with_a_running_lease_is_not_abandoned(ledger: Ledger, clock: PinnedClock, repeatable: bool) -> None:
    claim = held(ledger, repeatable=repeatable)
    clock.advance(29.999999)

    assert not ledger.blocking.abandon("call", "k", claim.version, note="why")

    assert status(ledger) == (Status.IN_PROGRESS, "")
    assert ledger.blocking.settle(claim, Outcome(body=b"1"))


@pytest.mark.parametrize(("repeatable", "left"), [(True, Status.FAILED), (False, Status.IN_DOUBT)])
def test_a_lapsed_claim_is_abandoned(ledger: Ledger, clock: PinnedClock, repeatable: bool, left: Status) -> None:
    claim = held(ledger, repeatable=repeatable)
    clock.advance(30)

    assert not ledger.blocking.abandon("call", "k", claim.version + 1, note="why")
    assert ledger.blocking.abandon("call", "k", claim.version, note="stopped by ann")

    assert status(ledger) == (left, "stopped by ann")
    assert not ledger.blocking.abandon("call", "k", claim.version, note="again")
    assert ledger.blocking.settle(claim, Outcome(body=b"late")) is not repeatable


@pytest.mark.parametrize("repeatable", [True, False])
def test_a_live_claim_abandoned_by_force_is_in_doubt_and_its_holder_may_still_settle(
    ledger: Ledger, repeatable: bool
) -> None:
    claim = held(ledger, repeatable=repeatable)

    assert not ledger.blocking.abandon("call", "k", claim.version + 1, note="by ann", force=True)
    assert ledger.blocking.abandon("call", "k", claim.version, note="by ann", force=True)

    assert status(ledger) == (Status.IN_DOUBT, "by ann")
    assert ledger.blocking.settle(claim, Outcome(body=b"late"))


def test_force_ends_a_lapsed_claim_in_the_same_way(ledger: Ledger, clock: PinnedClock) -> None:
    claim = held(ledger, repeatable=True)
    clock.advance(30)

    assert ledger.blocking.abandon("call", "k", claim.version, note="by ann", force=True)
    assert status(ledger) == (Status.FAILED, "by ann")


@pytest.mark.parametrize("force", [True, False])
def test_an_ended_claim_is_not_abandoned(ledger: Ledger, force: bool) -> None:
    claim = held(ledger, repeatable=False)
    ledger.blocking.settle(claim, Outcome(body=b"1"))

    assert not ledger.blocking.abandon("call", "k", claim.version, note="why", force=force)
    assert not ledger.blocking.abandon("call", "never asked for", 1, note="why", force=force)
    with pytest.raises(InvalidKey):
        ledger.blocking.abandon("call", "", 1, note="why")


@pytest.mark.parametrize("backend", ["sqlite"], indirect=True)
@pytest.mark.parametrize(("repeatable", "left"), [(True, Status.FAILED), (False, Status.IN_DOUBT)])
def test_the_claim_of_a_holder_proved_dead_can_be_abandoned(store_url: str, repeatable: bool, left: Status) -> None:
    script = (
        "import sys; from onceward import open_ledger; ledger = open_ledger(sys.argv[1], lease_seconds=3600);"
        f"print(ledger.blocking.begin('call', 'k', repeatable={repeatable}).version)"
    )
    done = subprocess.run([sys.executable, "-c", script, store_url], check=True, capture_output=True, text=True)

    with closing(Ledger(Opener(store_url)())) as ledger:
        assert ledger.blocking.abandon("call", "k", int(done.stdout), note="its process is gone")
        assert status(ledger) == (left, "its process is gone")
