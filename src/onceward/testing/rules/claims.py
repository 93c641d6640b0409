"""Claim table on a real store: every state combined with every verb."""

# ruff: noqa: S101, PLR2004  # These are tests.

from __future__ import annotations

from collections.abc import Callable

import pytest

from onceward.core.claim import Begin, Busy, Claim, Entry, Found, InDoubt, Mismatch, Replay, Status, Verb, found
from onceward.core.outcome import NOTHING, Outcome
from onceward.testing.caller import KEY, LEASE, LEASE_SECONDS, RETAIN_SECONDS, Caller, begin, entry_of
from onceward.testing.clock import PinnedClock

DONE = Outcome(200, "{}", b"done")


# Each function puts a key into one state. All have the same signature, so some do not use the clock.


def held(caller: Caller, clock: PinnedClock, key: str = KEY) -> Entry:  # noqa: ARG001
    return caller.hold(key)


def held_once(caller: Caller, clock: PinnedClock, key: str = KEY) -> Entry:  # noqa: ARG001
    return caller.hold(key, repeatable=False)


def lapsed(caller: Caller, clock: PinnedClock, key: str = KEY) -> Entry:
    entry = caller.hold(key)
    clock.advance(LEASE_SECONDS)
    return entry


def lapsed_once(caller: Caller, clock: PinnedClock, key: str = KEY) -> Entry:
    entry = caller.hold(key, repeatable=False)
    clock.advance(LEASE_SECONDS)
    return entry


def in_doubt(caller: Caller, clock: PinnedClock, key: str = KEY) -> Entry:
    lapsed_once(caller, clock, key)
    return entry_of(caller.begin(key, repeatable=False), applied=True)


def settled(caller: Caller, clock: PinnedClock, key: str = KEY) -> Entry:  # noqa: ARG001
    return entry_of(caller.move(Verb.SETTLE, caller.hold(key).version, key, outcome=DONE), applied=True)


def failed(caller: Caller, clock: PinnedClock, key: str = KEY) -> Entry:  # noqa: ARG001
    return entry_of(caller.move(Verb.FAIL, caller.hold(key).version, key), applied=True)


def released(caller: Caller, clock: PinnedClock, key: str = KEY) -> Entry:  # noqa: ARG001
    return entry_of(caller.move(Verb.RELEASE, caller.hold(key).version, key), applied=True)


def expired(caller: Caller, clock: PinnedClock, key: str = KEY) -> Entry:
    entry = settled(caller, clock, key)
    clock.advance(RETAIN_SECONDS)
    return entry


State = Callable[[Caller, PinnedClock, str], Entry]
STATES: list[State] = [held, held_once, lapsed, lapsed_once, in_doubt, settled, failed, released, expired]

# The verbs that each state accepts with the current version, and the status that they lead to.
ACCEPTED: dict[tuple[State, Verb], Status] = {
    (in_doubt, Verb.SETTLE): Status.COMPLETED,
    (in_doubt, Verb.UPHOLD): Status.COMPLETED,
    (in_doubt, Verb.OVERTURN): Status.FAILED,
    # Before the lease lapses, only ABANDON_DEAD is accepted, because it states that the holder is proved dead.
    (lapsed, Verb.ABANDON): Status.FAILED,
    (settled, Verb.FORGET): Status.FAILED,
    (lapsed_once, Verb.ABANDON): Status.IN_DOUBT,
}
for _state in (held, held_once, lapsed, lapsed_once):
    ACCEPTED |= {
        (_state, Verb.RENEW): Status.IN_PROGRESS,
        (_state, Verb.SETTLE): Status.COMPLETED,
        (_state, Verb.FAIL): Status.FAILED,
        (_state, Verb.NOT_DONE): Status.FAILED,
        (_state, Verb.RELEASE): Status.FAILED,
        (_state, Verb.DOUBT): Status.IN_DOUBT,
        (_state, Verb.ABANDON_DEAD): Status.FAILED if _state in (held, lapsed) else Status.IN_DOUBT,
    }

# The result of a begin in each state: its type, whether the write is applied, and the attempt of the entry afterwards.
FOUND: dict[State, tuple[type[Found], bool, int]] = {
    held: (Busy, False, 1),
    held_once: (Busy, False, 1),
    lapsed: (Claim, True, 2),
    lapsed_once: (InDoubt, True, 1),
    in_doubt: (InDoubt, False, 1),
    settled: (Replay, False, 1),
    failed: (Claim, True, 2),
    released: (Claim, True, 1),
    expired: (Claim, True, 1),
}


class ClaimRules:
    def test_a_begin_on_a_free_key_claims_it_and_records_the_holder(self, caller: Caller, clock: PinnedClock) -> None:
        """Rule 2."""
        write = begin()

        result = caller.one(write)

        entry = entry_of(result, applied=True)
        assert result.before is None
        assert entry.ref == (write.scope, write.key)
        assert (entry.status, entry.attempt) == (Status.IN_PROGRESS, 1)
        assert (entry.write_id, entry.holder, entry.fingerprint) == (write.write_id, write.holder, write.fingerprint)
        assert (entry.created_at, entry.lease_until, entry.completed_at) == (clock(), clock() + LEASE, None)
        assert entry.outcome == NOTHING
        assert entry.version > 0

    @pytest.mark.parametrize("state", STATES, ids=lambda state: state.__name__)
    def test_begin_follows_the_claim_table(self, state: State, caller: Caller, clock: PinnedClock) -> None:
        """Rule 2."""
        there = state(caller, clock, KEY)
        write = begin()

        result = caller.one(write)

        value, applied, attempt = FOUND[state]
        assert type(found(write, result)) is value
        entry = entry_of(result, applied=applied)
        assert entry.attempt == attempt
        assert (entry.version > there.version) == (value is Claim)

    @pytest.mark.parametrize("verb", Verb)
    def test_every_verb_follows_the_claim_table(self, verb: Verb, caller: Caller, clock: PinnedClock) -> None:
        """Rule 2."""
        for state in STATES:
            key = state.__name__
            there = state(caller, clock, key)

            result = caller.move(verb, there.version, key)

            status = ACCEPTED.get((state, verb))
            entry = entry_of(result, applied=status is not None)
            assert (key, entry.status) == (key, status or there.status)
            assert entry.version == there.version

    @pytest.mark.parametrize("verb", Verb)
    def test_every_verb_with_an_unknown_version_is_refused(
        self, verb: Verb, caller: Caller, clock: PinnedClock
    ) -> None:
        """Rule 2."""
        for state in STATES:
            key = state.__name__
            there = state(caller, clock, key)

            for version in (there.version - 1, there.version + 1):
                assert entry_of(caller.move(verb, version, key), applied=False) == there

    @pytest.mark.parametrize("verb", Verb)
    def test_every_verb_on_a_missing_entry_is_refused(self, verb: Verb, caller: Caller) -> None:
        """Rule 2."""
        result = caller.move(verb, 1)

        assert (result.applied, result.entry) == (False, None)

    @pytest.mark.parametrize("state", STATES, ids=lambda state: state.__name__)
    def test_another_fingerprint_is_a_mismatch_in_every_state_but_absent(
        self, state: State, caller: Caller, clock: PinnedClock
    ) -> None:
        """Rule 2."""
        there = state(caller, clock, KEY)
        write = begin(fingerprint="0" * 64)

        result = caller.one(write)

        free = state in (released, expired)
        assert result.applied == free
        assert found(write, result) == (Claim(entry_of(result, applied=True), None) if free else Mismatch(there))

    def test_a_holder_proved_dead_is_replaced_before_its_lease_lapses(self, caller: Caller) -> None:
        """Rule 2."""
        first = caller.hold()

        second = entry_of(caller.begin(dead=first.version), applied=True)

        assert second.version > first.version
        assert second.attempt == 2

    def test_a_dead_holder_of_work_that_may_not_be_repeated_leaves_it_in_doubt(self, caller: Caller) -> None:
        """Rule 2."""
        first = caller.hold(repeatable=False)

        result = caller.begin(repeatable=False, dead=first.version)

        entry = entry_of(result, applied=True)
        assert (entry.status, entry.version, result.before) == (Status.IN_DOUBT, first.version, Status.IN_PROGRESS)

    @pytest.mark.parametrize("offset", [-1, 1])
    def test_a_proof_of_death_for_another_version_is_ignored(self, offset: int, caller: Caller) -> None:
        """Rule 2."""
        first = caller.hold()

        assert entry_of(caller.begin(dead=first.version + offset), applied=False) == first

    @pytest.mark.parametrize("state", [in_doubt, settled], ids=lambda state: state.__name__)
    def test_a_proof_of_death_is_ignored_once_the_claim_has_ended(
        self, state: State, caller: Caller, clock: PinnedClock
    ) -> None:
        """Rule 2."""
        there = state(caller, clock, KEY)

        assert entry_of(caller.begin(dead=there.version), applied=False) == there

    @pytest.mark.parametrize(("first", "second"), [(True, False), (False, True), (False, False)])
    def test_a_lapsed_claim_is_repeated_only_if_its_holder_and_the_caller_both_allow_it(
        self, first: bool, second: bool, caller: Caller, clock: PinnedClock
    ) -> None:
        """Rule 2."""
        claim = caller.hold(repeatable=first)
        clock.advance(LEASE_SECONDS)

        entry = entry_of(caller.begin(repeatable=second), applied=True)

        assert (entry.status, entry.version, entry.attempt) == (Status.IN_DOUBT, claim.version, 1)
        assert entry.repeatable is first

    def test_a_lease_lapses_at_its_last_microsecond_and_not_before(self, caller: Caller, clock: PinnedClock) -> None:
        """Rule 2."""
        first = caller.hold()

        clock.set(first.lease_until - 1)
        assert entry_of(caller.begin(), applied=False) == first

        clock.set(first.lease_until)
        assert entry_of(caller.begin(), applied=True).version > first.version

    def test_a_renewed_lease_counts_from_the_renewal(self, caller: Caller, clock: PinnedClock) -> None:
        """Rule 2."""
        first = caller.hold()
        clock.advance(LEASE_SECONDS - 1)
        caller.move(Verb.RENEW, first.version, lease=LEASE * 2)
        clock.advance(LEASE_SECONDS * 2)

        entry = entry_of(caller.begin(), applied=True)

        assert entry.attempt == 2
        assert entry.lease_until == clock() + LEASE

    @pytest.mark.parametrize("verb", [Verb.RENEW, Verb.SETTLE, Verb.FAIL, Verb.NOT_DONE, Verb.RELEASE, Verb.DOUBT])
    def test_a_lapsed_holder_keeps_its_claim_until_another_begins(
        self, verb: Verb, caller: Caller, clock: PinnedClock
    ) -> None:
        """Rule 2."""
        first = caller.hold()
        clock.advance(LEASE_SECONDS * 100)

        assert caller.move(verb, first.version).applied

    @pytest.mark.parametrize("verb", Verb)
    def test_a_holder_whose_claim_was_taken_over_can_no_longer_write(
        self, verb: Verb, caller: Caller, clock: PinnedClock
    ) -> None:
        """Rule 2."""
        first = caller.hold()
        clock.advance(LEASE_SECONDS)
        second = caller.hold()

        assert entry_of(caller.move(verb, first.version, outcome=DONE), applied=False) == second

    def test_a_late_receipt_ends_the_doubt(self, caller: Caller, clock: PinnedClock) -> None:
        """Rule 2."""
        there = in_doubt(caller, clock)

        result = caller.move(Verb.SETTLE, there.version, outcome=DONE)

        entry = entry_of(result, applied=True)
        assert (entry.status, entry.outcome, entry.completed_at) == (Status.COMPLETED, DONE, clock())
        assert result.before is Status.IN_DOUBT

    def test_every_later_caller_gets_the_same_outcome(self, caller: Caller, clock: PinnedClock) -> None:
        """Rule 2."""
        there = settled(caller, clock)
        clock.advance(RETAIN_SECONDS - 1)

        for repeatable in (True, False):
            write = begin(repeatable=repeatable)

            assert found(write, caller.one(write)) == Replay(there)

    def test_a_settled_entry_cannot_be_settled_again(self, caller: Caller, clock: PinnedClock) -> None:
        """Rule 2."""
        there = settled(caller, clock)

        result = caller.move(Verb.SETTLE, there.version, outcome=Outcome(body=b"other"))

        assert entry_of(result, applied=False).outcome == DONE

    def test_an_attempt_counts_every_claim_since_the_key_was_free(self, caller: Caller, clock: PinnedClock) -> None:
        """Rule 2."""
        attempts = []
        for _ in range(3):
            entry = caller.hold()
            attempts.append(entry.attempt)
            caller.move(Verb.FAIL, entry.version)
            attempts.append(caller.hold().attempt)
            clock.advance(LEASE_SECONDS)

        assert attempts == [1, 2, 3, 4, 5, 6]

    def test_a_claim_has_the_terms_of_its_own_begin(self, caller: Caller, clock: PinnedClock) -> None:
        """Rule 2."""
        caller.hold()
        clock.advance(LEASE_SECONDS)

        write = Begin("tests", "the-key", "w" * 16, "f" * 64, "other", True, 5, 7, "someone", "PUT /y")
        entry = entry_of(caller.one(write), applied=True)

        assert (entry.holder, entry.user_id, entry.endpoint) == ("other", "someone", "PUT /y")
        assert (entry.lease_until, entry.expires_at) == (clock() + 5, clock() + 12)

    def test_a_reason_stays_with_the_key_until_another_replaces_it(self, caller: Caller, clock: PinnedClock) -> None:
        """Rule 2."""
        caller.move(Verb.FAIL, caller.hold().version, note="the bank said no")
        second = caller.hold()
        assert second.note == "the bank said no"

        clock.advance(LEASE_SECONDS)
        assert caller.hold().note == "the bank said no"

        released_note = caller.move(Verb.RELEASE, entry_of(caller.begin(), applied=False).version, note="never mind")
        assert entry_of(released_note, applied=True).note == "never mind"
        assert caller.hold().note == ""
