"""Purge: the only operation that deletes entries, and the entries that it must not delete."""

# ruff: noqa: S101  # These are tests.

from __future__ import annotations

import pytest

from onceward.core.claim import Verb
from onceward.testing.caller import LEASE, LEASE_SECONDS, RETAIN_SECONDS, Caller, entry_of
from onceward.testing.clock import PinnedClock


class PurgeRules:
    @pytest.mark.parametrize("verb", [Verb.SETTLE, Verb.FAIL])
    def test_a_finished_entry_is_purged_from_its_last_microsecond_on(
        self, verb: Verb, caller: Caller, clock: PinnedClock
    ) -> None:
        """Rule 6."""
        finished = entry_of(caller.move(verb, caller.hold().version), applied=True)
        assert finished.expires_at is not None

        clock.set(finished.expires_at - 1)
        assert caller.store.purge(10) == 0
        assert caller.read() == finished

        clock.set(finished.expires_at)
        assert caller.store.purge(10) == 1
        assert caller.read() is None

    def test_a_released_entry_may_be_purged_at_once(self, caller: Caller) -> None:
        """Rule 6."""
        caller.move(Verb.RELEASE, caller.hold().version)

        assert caller.store.purge(10) == 1
        assert caller.read() is None

    def test_held_work_that_may_not_be_repeated_is_never_purged(self, caller: Caller, clock: PinnedClock) -> None:
        """Rule 6."""
        entry = caller.hold(repeatable=False)
        caller.move(Verb.RENEW, entry.version)
        clock.advance(RETAIN_SECONDS * 4000)

        assert caller.store.purge(10) == 0
        assert caller.read() is not None

    @pytest.mark.parametrize("repeatable", [True, False])
    def test_an_entry_in_doubt_is_never_purged(self, repeatable: bool, caller: Caller, clock: PinnedClock) -> None:
        """Rule 6."""
        caller.move(Verb.DOUBT, caller.hold("given-up", repeatable=repeatable).version, "given-up")
        caller.hold("lapsed", repeatable=repeatable)
        clock.advance(LEASE_SECONDS)
        caller.begin("lapsed", repeatable=False)
        clock.advance(RETAIN_SECONDS * 4000)

        assert caller.store.purge(10) == 0
        assert caller.read("given-up") is not None
        assert caller.read("lapsed") is not None

    def test_abandoned_work_that_may_be_repeated_is_purged_after_lease_and_retention(
        self, caller: Caller, clock: PinnedClock
    ) -> None:
        """Rule 6."""
        caller.hold()

        clock.advance(LEASE_SECONDS + RETAIN_SECONDS - 0.000001)
        assert caller.store.purge(10) == 0

        clock.advance(0.000001)
        assert caller.store.purge(10) == 1
        assert caller.read() is None

    def test_a_renewal_moves_the_purge_of_held_work(self, caller: Caller, clock: PinnedClock) -> None:
        """Rule 6."""
        version = caller.hold().version
        clock.advance(LEASE_SECONDS + RETAIN_SECONDS)
        caller.move(Verb.RENEW, version, lease=LEASE)

        clock.advance(LEASE_SECONDS + RETAIN_SECONDS - 0.000001)
        assert caller.store.purge(10) == 0

        clock.advance(0.000001)
        assert caller.store.purge(10) == 1

    def test_an_entry_that_was_claimed_again_is_not_purged_by_its_old_expiry(
        self, caller: Caller, clock: PinnedClock
    ) -> None:
        """Rule 6."""
        caller.move(Verb.SETTLE, caller.hold().version)
        clock.advance(RETAIN_SECONDS)
        entry = caller.hold(repeatable=False)
        clock.advance(RETAIN_SECONDS * 10)

        assert caller.store.purge(10) == 0
        assert caller.read() == entry

    def test_a_holder_whose_entry_was_purged_has_lost_its_claim(self, caller: Caller, clock: PinnedClock) -> None:
        """Rule 6."""
        first = caller.hold()
        clock.advance(LEASE_SECONDS + RETAIN_SECONDS)
        caller.store.purge(10)
        for verb in Verb:
            assert not caller.move(verb, first.version).applied

        second = caller.hold()

        assert second.attempt == 1
        assert entry_of(caller.move(Verb.SETTLE, first.version), applied=False) == second

    def test_a_purge_deletes_no_more_than_its_limit(self, caller: Caller, clock: PinnedClock) -> None:
        """Rule 7."""
        for number in range(7):
            caller.move(Verb.RELEASE, caller.hold(f"key-{number}").version, f"key-{number}")
        kept = caller.hold("kept")
        clock.advance(1)

        assert [caller.store.purge(3) for _ in range(4)] == [3, 3, 1, 0]
        assert caller.scan() == [kept]

    def test_a_purge_deletes_the_chunks_too(self, caller: Caller) -> None:
        """Rule 6."""
        first = caller.hold()
        caller.append(first.version, 1, b"old", b"older")
        caller.move(Verb.RELEASE, first.version)
        caller.store.purge(10)
        second = caller.hold()

        assert caller.chunks(first.version) == []
        assert caller.chunks(second.version) == []
        assert caller.append(second.version, 1, b"new").applied
        assert caller.chunks(second.version) == [b"new"]

    def test_purging_an_empty_store_deletes_nothing(self, caller: Caller) -> None:
        """Rule 6."""
        assert caller.store.purge(500) == 0
