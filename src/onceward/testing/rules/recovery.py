"""Recovery points: what a holder recorded for the next one, and the count of attempts that did nothing."""

# ruff: noqa: S101  # These are tests.

from __future__ import annotations

import pytest

from onceward.core.claim import SECRET_UNIT, Claim, Entry, Mark, Status, Verb, committed, doubted, found
from onceward.core.outcome import Outcome
from onceward.testing.caller import (
    KEY,
    LEASE_SECONDS,
    RETAIN_SECONDS,
    Caller,
    OpenStore,
    begin,
    entry_of,
    mark,
    move,
)
from onceward.testing.clock import PinnedClock

TEXT = '{"batch":"b-1"}'


def _marked(caller: Caller, *, repeatable: bool = True) -> Entry:
    return entry_of(caller.mark(caller.hold(repeatable=repeatable).version, 1, TEXT), applied=True)


def _point(entry: Entry) -> tuple[str | None, int]:
    return entry.recovery, entry.recovery_seq


class RecoveryRules:
    def test_a_mark_is_stored_and_changes_nothing_else(self, caller: Caller) -> None:
        """Rule 2."""
        held = caller.hold(repeatable=False)
        write = mark(held.version, 1, TEXT)

        result = caller.one(write)

        entry = entry_of(result, applied=True)
        assert (_point(entry), entry.write_id, result.before) == ((TEXT, 1), write.write_id, Status.IN_PROGRESS)
        assert (entry.status, entry.lease_until, entry.expires_at) == (held.status, held.lease_until, held.expires_at)
        assert caller.scan() == [entry]

    @pytest.mark.parametrize("text", ['""', '"é\\u0000\\ud83d\\ude00"', "sealed:AgEC/+==", '"' + "x" * 24_000 + '"'])
    def test_the_text_of_a_mark_is_stored_unchanged(self, text: str, caller: Caller) -> None:
        """Rule 1."""
        version = caller.hold().version

        assert entry_of(caller.mark(version, 1, text), applied=True).recovery == text

    def test_an_old_mark_never_replaces_a_new_one(self, caller: Caller) -> None:
        """Rule 2."""
        version = caller.hold().version
        late = mark(version, 1, '"old"')
        newest = entry_of(caller.mark(version, 2, TEXT), applied=True)

        for write in (late, mark(version, 2, '"same number"')):
            assert entry_of(caller.one(write), applied=False) == newest

    def test_a_holder_that_was_replaced_can_no_longer_mark(self, caller: Caller, clock: PinnedClock) -> None:
        """Rule 2."""
        first = _marked(caller)
        clock.advance(LEASE_SECONDS)
        second = caller.hold()

        assert entry_of(caller.mark(first.version, 9, '"late"'), applied=False) == second

    @pytest.mark.parametrize("verb", [Verb.SETTLE, Verb.FAIL, Verb.RELEASE])
    def test_a_finished_entry_refuses_marks(self, verb: Verb, caller: Caller) -> None:
        """Rule 2."""
        finished = entry_of(caller.move(verb, caller.hold().version), applied=True)

        assert entry_of(caller.mark(finished.version, 1, TEXT), applied=False) == finished

    def test_a_mark_on_a_missing_entry_is_refused(self, caller: Caller) -> None:
        """Rule 2."""
        other = caller.hold("another")

        result = caller.mark(other.version, 1, TEXT)

        assert (result.applied, result.entry) == (False, None)

    def test_a_recovery_point_survives_takeover_failure_and_abandonment(
        self, caller: Caller, clock: PinnedClock
    ) -> None:
        """Rule 2. Each holder continues the numbers."""
        first = _marked(caller)
        caller.move(Verb.RENEW, first.version)
        caller.append(first.version, 1, b"chunk")
        clock.advance(LEASE_SECONDS)
        second = caller.hold()
        assert _point(second) == (TEXT, 1)

        caller.mark(second.version, 2, '"two"')
        caller.move(Verb.FAIL, second.version)
        third = caller.hold()
        assert _point(third) == ('"two"', 2)

        clock.advance(LEASE_SECONDS)
        caller.move(Verb.ABANDON, third.version)
        assert _point(caller.hold()) == ('"two"', 2)

    @pytest.mark.parametrize("how", ["begin", "doubt", "abandon"])
    def test_a_recovery_point_survives_doubt_and_a_holder_in_doubt_may_mark(
        self, how: str, caller: Caller, clock: PinnedClock
    ) -> None:
        """Rule 2. The write that put the entry in doubt still recognises itself."""
        version = _marked(caller, repeatable=False).version
        clock.advance(LEASE_SECONDS)
        write = begin(repeatable=False) if how == "begin" else move(Verb(how), version)
        entry = entry_of(caller.one(write), applied=True)
        assert (entry.status, _point(entry)) == (Status.IN_DOUBT, (TEXT, 1))

        entry = entry_of(caller.mark(version, 2, '"late"'), applied=True)

        assert (entry.status, _point(entry)) == (Status.IN_DOUBT, ('"late"', 2))
        assert doubted(write, caller.one(write))
        settled = entry_of(caller.move(Verb.SETTLE, version, outcome=Outcome(body=b"1")), applied=True)
        assert _point(settled) == ('"late"', 2)

    def test_a_verdict_of_not_committed_drops_the_recovery_point(self, caller: Caller) -> None:
        """Rule 2. The next holder numbers its marks from 1 again."""
        version = _marked(caller, repeatable=False).version
        caller.move(Verb.DOUBT, version)

        overturned = entry_of(caller.move(Verb.OVERTURN, version), applied=True)

        assert _point(overturned) == (None, 0)
        assert _point(entry_of(caller.mark(caller.hold().version, 1, TEXT), applied=True)) == (TEXT, 1)

    @pytest.mark.parametrize("verb", [Verb.RELEASE, Verb.SETTLE])
    def test_a_recovery_point_ends_with_the_entry(self, verb: Verb, caller: Caller, clock: PinnedClock) -> None:
        """Rule 6."""
        caller.move(verb, _marked(caller).version)
        clock.advance(RETAIN_SECONDS)

        entry = caller.hold()

        assert (entry.attempt, _point(entry)) == (1, (None, 0))

    def test_a_mark_whose_result_was_lost_recognises_itself(self, caller: Caller) -> None:
        """Rule 8. Also after other writes of the holder, and after a later mark."""
        held = caller.hold()
        write = mark(held.version, 1, TEXT)
        caller.one(write)
        assert committed(write, caller.one(write))

        caller.move(Verb.RENEW, held.version)
        assert committed(write, caller.one(write))

        later = mark(held.version, 2, TEXT)
        assert not committed(later, caller.one(Mark("tests", KEY, write.write_id, held.version, 1, TEXT)))
        caller.one(later)
        caller.move(Verb.SETTLE, held.version)
        assert committed(write, caller.one(write))
        assert committed(later, caller.one(later))

    def test_a_mark_of_one_store_is_seen_by_another_on_the_same_data(
        self, caller: Caller, open_store: OpenStore, clock: PinnedClock
    ) -> None:
        """Rule 2. The first store must not answer, or write, from what it remembers of its own claim."""
        other = Caller(open_store(clock))
        version = caller.hold().version
        other.mark(version, 1, TEXT)

        assert _point(entry_of(caller.move(Verb.RENEW, version), applied=True)) == (TEXT, 1)
        other.mark(version, 2, '"two"')
        assert _point(entry_of(caller.move(Verb.FAIL, version), applied=True)) == ('"two"', 2)

    def test_marks_of_one_batch_are_decided_one_by_one(self, caller: Caller) -> None:
        """Rule 1."""
        versions = [caller.hold(key).version for key in ("a", "b", "c")]
        caller.mark(versions[1], 5, TEXT, key="b")
        writes = [mark(version, 3, f'"{key}"', key=key) for key, version in zip("abc", versions, strict=True)]

        results = caller.commit(*writes)

        assert [result.applied for result in results] == [True, False, True]
        assert [caller.read(key).recovery for key in "abc"] == ['"a"', TEXT, '"c"']  # type: ignore[union-attr]

    def test_only_attempts_that_did_nothing_are_counted(self, caller: Caller, clock: PinnedClock) -> None:
        """Rule 2. The id of the secret is fixed by the first attempt."""
        first = entry_of(caller.begin(key_basis=7 * SECRET_UNIT), applied=True)
        counts = []
        caller.move(Verb.NOT_DONE, first.version)
        second = entry_of(caller.begin(key_basis=8 * SECRET_UNIT), applied=True)
        counts.append(second.not_done_count)
        caller.move(Verb.FAIL, second.version)
        third = caller.hold()
        counts.append(third.not_done_count)
        clock.advance(LEASE_SECONDS)
        fourth = caller.hold()
        counts.append(fourth.not_done_count)
        caller.move(Verb.DOUBT, fourth.version)
        caller.move(Verb.OVERTURN, fourth.version)
        write = begin()
        claim = found(write, caller.one(write))

        assert isinstance(claim, Claim)
        assert [*counts, claim.entry.not_done_count, claim.entry.secret_id] == [1, 1, 1, 2, 7]
        caller.move(Verb.RELEASE, claim.version)
        assert (caller.hold().key_basis, caller.scan()[0].key_basis) == (0, 0)
