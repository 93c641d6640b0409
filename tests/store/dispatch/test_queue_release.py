"""Claims whose caller is gone."""

from __future__ import annotations

import pytest

from onceward import Ledger
from onceward.core.claim import Begin, Claim, Status, WriteResult
from onceward.core.fingerprint import fingerprint
from onceward.store.dispatch.queue import give_back, release_for
from onceward.store.memory import MemoryStore
from onceward.testing import PinnedClock

SECOND = 1_000_000
SCOPE = "onceward:call"


@pytest.fixture
def store(clock: PinnedClock) -> MemoryStore:
    return MemoryStore(clock)


def begin(write_id: str) -> Begin:
    return Begin(
        SCOPE,
        "key",
        write_id,
        fingerprint=fingerprint(None),
        holder="holder",
        repeatable=True,
        lease=30 * SECOND,
        retain=60 * SECOND,
    )


def test_a_released_claim_leaves_the_key_as_if_never_claimed(store: MemoryStore) -> None:
    give_back(store, begin("one"), *store.commit([begin("one")]))

    found = Ledger(store).blocking.begin("call", "key", repeatable=True)

    assert isinstance(found, Claim)
    assert (found.attempt, found.before) == (1, None)


def test_a_released_takeover_leaves_the_key_to_be_taken_over(store: MemoryStore, clock: PinnedClock) -> None:
    """The silent holder may have done something that must be undone first."""
    store.commit([begin("silent")])
    clock.advance(31)
    give_back(store, begin("one"), *store.commit([begin("one")]))

    found = Ledger(store).blocking.begin("call", "key", repeatable=True)

    assert isinstance(found, Claim)
    assert found.took_over


def test_a_claim_whose_result_was_lost_is_released_when_the_repeated_write_shows_it(store: MemoryStore) -> None:
    store.commit([begin("one")])
    (again,) = store.commit([begin("one")])

    release = release_for(begin("one"), again)

    assert not again.applied
    assert release is not None
    (result,) = store.commit([release])
    assert result.entry is not None
    assert result.entry.status is Status.FAILED


def test_the_claim_of_another_caller_is_not_released(store: MemoryStore) -> None:
    store.commit([begin("theirs")])
    (refused,) = store.commit([begin("mine")])

    assert release_for(begin("mine"), refused) is None
    assert release_for(begin("mine"), WriteResult(applied=False, entry=None, now=0)) is None
