"""Lapsed claims that their holder did not end: how to find them, and how another caller abandons them."""

# ruff: noqa: S101, PLR2004  # These are tests.

from __future__ import annotations

from collections.abc import Callable

import pytest

from onceward.core.claim import Claim, Entry, Status, Verb, found
from onceward.core.outcome import Outcome
from onceward.testing.caller import LEASE, LEASE_SECONDS, Caller, begin, entry_of, move
from onceward.testing.clock import PinnedClock

DONE = Outcome(200, "{}", b"done")


def _settle(caller: Caller, entry: Entry) -> None:
    caller.move(Verb.SETTLE, entry.version, entry.key, outcome=DONE)


def _fail(caller: Caller, entry: Entry) -> None:
    caller.move(Verb.FAIL, entry.version, entry.key)


def _release(caller: Caller, entry: Entry) -> None:
    caller.move(Verb.RELEASE, entry.version, entry.key)


def _doubt(caller: Caller, entry: Entry) -> None:
    caller.move(Verb.DOUBT, entry.version, entry.key)


def _abandon(caller: Caller, entry: Entry) -> None:
    caller.move(Verb.ABANDON, entry.version, entry.key)


def _begin(caller: Caller, entry: Entry) -> None:
    caller.begin(entry.key, repeatable=False)


def _renew(caller: Caller, entry: Entry) -> None:
    caller.move(Verb.RENEW, entry.version, entry.key, lease=LEASE)


ENDS = [_settle, _fail, _release, _doubt, _abandon, _begin, _renew]


def _keys(caller: Caller, limit: int = 10) -> list[str]:
    return [entry.key for entry in caller.store.lapsed(limit)]


class DoubtRules:
    def test_only_lapsed_claims_that_may_not_be_repeated_are_found(self, caller: Caller, clock: PinnedClock) -> None:
        """Rule 6."""
        entry = caller.hold("lapsed", repeatable=False)
        caller.hold("may be repeated")
        for number, end in enumerate((_settle, _fail, _release, _doubt)):
            end(caller, caller.hold(f"ended-{number}", repeatable=False))

        clock.advance(LEASE_SECONDS - 0.000001)
        caller.hold("live", repeatable=False)
        assert _keys(caller) == []

        clock.advance(0.000001)
        assert list(caller.store.lapsed(10)) == [entry]

    def test_lapsed_claims_come_oldest_lease_first_and_up_to_the_limit(
        self, caller: Caller, clock: PinnedClock
    ) -> None:
        """Rule 7."""
        for number in (3, 1, 2):
            caller.hold(f"key-{number}", repeatable=False)
            clock.advance(1)
        clock.advance(LEASE_SECONDS)

        assert _keys(caller) == ["key-3", "key-1", "key-2"]
        found = _keys(caller, 2)
        assert len(found) == 2
        assert set(found) < {"key-1", "key-2", "key-3"}

    @pytest.mark.parametrize("end", ENDS, ids=lambda end: end.__name__.strip("_"))
    def test_a_claim_is_found_until_it_ends_or_is_renewed(
        self, end: Callable[[Caller, Entry], None], caller: Caller, clock: PinnedClock
    ) -> None:
        """Rule 6."""
        entry = caller.hold(repeatable=False)
        clock.advance(LEASE_SECONDS)
        assert _keys(caller) == _keys(caller) == [entry.key]

        end(caller, entry)

        assert _keys(caller) == []

    def test_a_renewed_claim_is_found_when_its_new_lease_lapses(self, caller: Caller, clock: PinnedClock) -> None:
        """Rule 6."""
        entry = caller.hold(repeatable=False)
        clock.advance(LEASE_SECONDS - 1)
        _renew(caller, entry)
        clock.advance(LEASE_SECONDS - 0.000001)
        assert _keys(caller) == []

        clock.advance(0.000001)
        assert _keys(caller) == [entry.key]

    def test_a_key_that_failed_and_was_claimed_again_is_found_by_its_new_lease(
        self, caller: Caller, clock: PinnedClock
    ) -> None:
        """Rule 6."""
        _fail(caller, caller.hold())
        clock.advance(5)
        second = caller.hold(repeatable=False)
        clock.advance(LEASE_SECONDS)

        assert list(caller.store.lapsed(10)) == [second]

    def test_a_holder_that_renews_in_time_keeps_its_claim(self, caller: Caller, clock: PinnedClock) -> None:
        """Rule 2. The renewal comes after `lapsed` has returned the claim, and before the abandon."""
        entry = caller.hold(repeatable=False)
        clock.advance(LEASE_SECONDS)
        (seen,) = caller.store.lapsed(10)
        caller.move(Verb.RENEW, entry.version, lease=LEASE)

        current = entry_of(caller.move(Verb.ABANDON, seen.version), applied=False)

        assert current.status is Status.IN_PROGRESS
        clock.advance(LEASE_SECONDS - 0.000001)
        assert not caller.move(Verb.ABANDON, seen.version).applied
        clock.advance(0.000001)
        assert entry_of(caller.move(Verb.ABANDON, seen.version), applied=True).status is Status.IN_DOUBT

    def test_a_claim_abandoned_in_doubt_still_accepts_a_late_receipt(self, caller: Caller, clock: PinnedClock) -> None:
        """Rule 2."""
        entry = caller.hold(repeatable=False)
        clock.advance(LEASE_SECONDS)
        doubted = entry_of(caller.move(Verb.ABANDON, entry.version), applied=True)
        assert (doubted.expires_at, doubted.completed_at, doubted.lease_until) == (None, None, entry.lease_until)

        late = entry_of(caller.move(Verb.SETTLE, entry.version, outcome=DONE), applied=True)

        assert (late.status, late.outcome) == (Status.COMPLETED, DONE)

    def test_an_abandoned_claim_that_may_be_repeated_has_failed(self, caller: Caller, clock: PinnedClock) -> None:
        """Rule 2."""
        entry = caller.hold()
        caller.append(entry.version, 1, b"half of it")
        clock.advance(LEASE_SECONDS)

        failed = entry_of(caller.move(Verb.ABANDON, entry.version, note="stopped by hand"), applied=True)

        assert (failed.status, failed.note, failed.outcome.chunks) == (Status.FAILED, "stopped by hand", 0)
        assert failed.completed_at is None
        write = begin()
        claim = found(write, caller.one(write))
        assert isinstance(claim, Claim)
        # It is unknown what the holder had done. The next holder has to undo it, where that is possible.
        assert (claim.attempt, claim.took_over) == (2, True)
        after = entry_of(caller.move(Verb.FAIL, claim.version), applied=True)
        assert after.completed_at is not None
        write = begin()
        third = found(write, caller.one(write))
        assert isinstance(third, Claim)
        assert (third.attempt, third.took_over) == (3, False)

    def test_a_stricter_caller_leaves_an_abandoned_claim_in_doubt(self, caller: Caller, clock: PinnedClock) -> None:
        """Rule 2."""
        entry = caller.hold()
        clock.advance(LEASE_SECONDS)
        caller.move(Verb.ABANDON, entry.version)

        doubted = entry_of(caller.begin(repeatable=False), applied=True)

        assert (doubted.status, doubted.version) == (Status.IN_DOUBT, entry.version)
        assert [one.key for one in caller.scan(status=Status.IN_DOUBT)] == [entry.key]

    @pytest.mark.parametrize("repeatable", [True, False])
    def test_the_lease_of_a_holder_proved_dead_does_not_count(self, repeatable: bool, caller: Caller) -> None:
        """Rule 2."""
        entry = caller.hold(repeatable=repeatable)
        assert not caller.move(Verb.ABANDON, entry.version).applied

        ended = entry_of(caller.move(Verb.ABANDON_DEAD, entry.version), applied=True)

        assert ended.status is (Status.FAILED if repeatable else Status.IN_DOUBT)

    def test_an_abandoned_claim_keeps_its_note_unless_a_new_one_is_given(
        self, caller: Caller, clock: PinnedClock
    ) -> None:
        """Rule 2."""
        for key, note, expected in (("silent", "", "first try"), ("noted", "by hand", "by hand")):
            caller.move(Verb.FAIL, caller.hold(key).version, key, note="first try")
            entry = caller.hold(key, repeatable=False)
            clock.advance(LEASE_SECONDS)

            assert entry_of(caller.move(Verb.ABANDON, entry.version, key, note=note), applied=True).note == expected

    def test_a_page_of_lapsed_claims_is_abandoned_in_one_batch(self, caller: Caller, clock: PinnedClock) -> None:
        """Rule 1. After the page was read, one of its claims was settled and one was renewed."""
        for number in range(6):
            caller.hold(f"key-{number}", repeatable=False)
        clock.advance(LEASE_SECONDS)
        page = caller.store.lapsed(10)
        _settle(caller, page[1])
        _renew(caller, page[2])

        results = caller.commit(*(move(Verb.ABANDON, entry.version, entry.key) for entry in page))

        assert [result.applied for result in results] == [True, False, False, True, True, True]

    def test_a_takeover_records_its_time_and_a_renewal_does_not(self, caller: Caller, clock: PinnedClock) -> None:
        """Rule 5."""
        first = caller.hold()
        began_at = clock()
        clock.advance(LEASE_SECONDS - 1)
        caller.move(Verb.RENEW, first.version, lease=LEASE)
        clock.advance(LEASE_SECONDS)
        assert first.claimed_at == began_at
        assert getattr(caller.read(), "claimed_at", None) == began_at

        second = caller.hold()

        assert (second.claimed_at, second.created_at) == (clock(), began_at)
        clock.advance(1)
        failed = entry_of(caller.move(Verb.FAIL, second.version), applied=True)
        assert failed.claimed_at == second.claimed_at
        clock.advance(1)
        assert caller.hold().claimed_at == clock()
