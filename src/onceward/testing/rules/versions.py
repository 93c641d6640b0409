"""Fencing: the versions of a key only increase, and a repeated write recognises itself."""

# ruff: noqa: S101  # These are tests.

from __future__ import annotations

from dataclasses import replace

import pytest

from onceward.core.claim import Claim, InDoubt, Status, Verb, committed, found
from onceward.core.outcome import Outcome
from onceward.store import Store
from onceward.testing.caller import (
    LEASE_SECONDS,
    RETAIN_SECONDS,
    Caller,
    OpenStore,
    append,
    begin,
    entry_of,
    move,
    write_id,
)
from onceward.testing.clock import PinnedClock


class VersionRules:
    def test_versions_increase_with_every_claim_however_the_last_one_ended(
        self, caller: Caller, clock: PinnedClock
    ) -> None:
        """Rule 4."""
        versions = []
        for verb in (Verb.FAIL, Verb.RELEASE, Verb.SETTLE, None):
            entry = caller.hold()
            versions.append(entry.version)
            if verb is not None:
                caller.move(verb, entry.version)
            clock.advance(RETAIN_SECONDS)
        versions.append(caller.hold().version)

        assert versions == sorted(set(versions))

    @pytest.mark.parametrize("verb", [Verb.FAIL, Verb.RELEASE, Verb.SETTLE])
    def test_versions_increase_across_a_purge(self, verb: Verb, caller: Caller, clock: PinnedClock) -> None:
        """Rule 4."""
        versions = []
        for _ in range(3):
            entry = caller.hold()
            versions.append(entry.version)
            caller.move(verb, entry.version)
            clock.advance(RETAIN_SECONDS)
            assert caller.store.purge(10) == 1
            assert caller.read() is None

        assert versions == sorted(set(versions))

    def test_versions_increase_across_reopening_and_a_purge(
        self, caller: Caller, clock: PinnedClock, open_store: OpenStore
    ) -> None:
        """Rule 4."""
        first = caller.hold()
        caller.move(Verb.FAIL, first.version)
        clock.advance(RETAIN_SECONDS)
        caller.store.purge(10)

        second = Caller(open_store(clock)).hold()

        assert second.version > first.version

    def test_versions_increase_although_the_clock_is_set_back(self, caller: Caller, clock: PinnedClock) -> None:
        """Rule 4."""
        versions = []
        for _ in range(3):
            entry = caller.hold()
            versions.append(entry.version)
            caller.move(Verb.RELEASE, entry.version)
            caller.store.purge(10)
            clock.advance(-3600)

        assert versions == sorted(set(versions))

    def test_a_move_into_doubt_keeps_the_version(self, caller: Caller, clock: PinnedClock) -> None:
        """Rule 4."""
        entry = caller.hold(repeatable=False)
        clock.advance(LEASE_SECONDS)

        assert entry_of(caller.begin(), applied=True).version == entry.version

    def test_a_refused_write_uses_no_version(self, caller: Caller) -> None:
        """Rule 3."""

        def gap(refused: int) -> int:
            first = caller.hold()
            for _ in range(refused):
                assert not caller.begin().applied
                assert not caller.begin(fingerprint="0" * 64).applied
            caller.move(Verb.FAIL, first.version)
            second = caller.hold()
            caller.move(Verb.RELEASE, second.version)
            return second.version - first.version

        assert gap(refused=5) == gap(refused=0)

    def test_a_refused_write_changes_nothing_and_returns_the_entry_that_refused_it(
        self, caller: Caller, clock: PinnedClock
    ) -> None:
        """Rule 3."""
        there = caller.hold()
        clock.advance(1)

        for write in (
            begin(),
            begin(fingerprint="0" * 64),
            move(Verb.UPHOLD, there.version),
            move(Verb.SETTLE, there.version + 1, outcome=Outcome(body=b"x")),
            append(there.version, 2, b"x"),
            append(there.version + 1, 1, b"x"),
        ):
            assert entry_of(caller.one(write), applied=False) == there
        assert caller.read() == there
        assert caller.chunks(there.version) == []

    def test_a_settled_entry_is_unchanged_by_any_number_of_duplicates(self, caller: Caller) -> None:
        """Rule 3."""
        there = entry_of(caller.move(Verb.SETTLE, caller.hold().version, outcome=Outcome(body=b"x")), applied=True)

        assert {caller.begin().entry for _ in range(5)} == {there}

    def test_a_begin_whose_result_was_lost_recognises_its_own_claim(self, caller: Caller) -> None:
        """Rule 8."""
        write = begin()
        claimed = entry_of(caller.one(write), applied=True)

        again = caller.one(write)

        assert not again.applied
        assert found(write, again) == Claim(claimed, None)

    def test_a_retry_whose_result_was_lost_assumes_that_it_took_over(self, caller: Caller, clock: PinnedClock) -> None:
        """Rule 8."""
        caller.hold()
        clock.advance(LEASE_SECONDS)
        write = begin()
        claimed = entry_of(caller.one(write), applied=True)

        assert found(write, caller.one(write)) == Claim(claimed, Status.IN_PROGRESS)

    def test_a_begin_that_found_doubt_finds_it_again(self, caller: Caller, clock: PinnedClock) -> None:
        """Rule 8."""
        caller.hold(repeatable=False)
        clock.advance(LEASE_SECONDS)
        write = begin()

        assert type(found(write, caller.one(write))) is InDoubt
        assert type(found(write, caller.one(write))) is InDoubt

    @pytest.mark.parametrize("verb", [Verb.RENEW, Verb.SETTLE, Verb.FAIL, Verb.RELEASE, Verb.DOUBT])
    def test_a_move_whose_result_was_lost_recognises_its_own_write(self, verb: Verb, caller: Caller) -> None:
        """Rule 8."""
        write = move(verb, caller.hold().version)

        assert committed(write, caller.one(write))
        assert committed(write, caller.one(write))
        assert not committed(replace(write, write_id=write_id(), verb=Verb.UPHOLD), caller.one(move(Verb.UPHOLD, 0)))

    @pytest.mark.parametrize("verb", [Verb.UPHOLD, Verb.OVERTURN])
    def test_a_verdict_whose_result_was_lost_recognises_its_own_write(self, verb: Verb, caller: Caller) -> None:
        """Rule 8."""
        version = caller.hold().version
        caller.move(Verb.DOUBT, version)
        write = move(verb, version)

        assert committed(write, caller.one(write))
        assert committed(write, caller.one(write))

    def test_a_repeated_late_settle_is_not_mistaken_for_the_outcome_of_another_holder(
        self, caller: Caller, clock: PinnedClock
    ) -> None:
        """Rule 8."""
        first = caller.hold()
        clock.advance(LEASE_SECONDS)
        second = caller.hold()
        caller.move(Verb.SETTLE, second.version, outcome=Outcome(body=b"second"))

        late = move(Verb.SETTLE, first.version, outcome=Outcome(body=b"first"))

        assert not committed(late, caller.one(late))
        assert not committed(late, caller.one(late))

    def test_an_append_whose_result_was_lost_recognises_itself_after_a_renewal(self, caller: Caller) -> None:
        """Rule 8."""
        version = caller.hold().version
        write = append(version, 1, b"a", b"b")
        caller.one(write)
        caller.move(Verb.RENEW, version)

        assert committed(write, caller.one(write))
        assert caller.chunks(version) == [b"a", b"b"]

    def test_every_applied_write_stores_its_write_id(self, caller: Caller) -> None:
        """Rule 8."""
        version = caller.hold().version

        for write in (
            move(Verb.RENEW, version),
            append(version, 1, b"x"),
            move(Verb.DOUBT, version),
            move(Verb.UPHOLD, version),
        ):
            assert entry_of(caller.one(write), applied=True).write_id == write.write_id

    def test_two_holders_of_one_key_never_both_settle(
        self, caller: Caller, store: Store, clock: PinnedClock, open_store: OpenStore
    ) -> None:
        """Rule 2."""
        other = Caller(open_store(clock))
        first = caller.hold()
        clock.advance(LEASE_SECONDS)
        second = other.hold()

        results = (
            store.commit([move(Verb.SETTLE, first.version)]),
            other.store.commit([move(Verb.SETTLE, second.version)]),
        )

        assert [result[0].applied for result in results] == [False, True]
