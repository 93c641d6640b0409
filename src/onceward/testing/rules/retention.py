"""After the retention: keys that are refused, and entries that never expire."""

# ruff: noqa: S101, PLR2004  # These are tests.

from __future__ import annotations

import pytest

from onceward.core.claim import EVER, Claim, Entry, Expired, Mismatch, Replay, Status, Verb, found
from onceward.core.outcome import NOTHING, Outcome
from onceward.testing.caller import KEY, RETAIN, RETAIN_SECONDS, Caller, begin, entry_of
from onceward.testing.clock import SECOND, PinnedClock

DONE = Outcome(200, "{}", b"done")
REFUSE = 60 * SECOND


def _settled(caller: Caller, refuse: int, outcome: Outcome = DONE) -> Entry:
    version = caller.hold(repeatable=False).version
    caller.mark(version, 1, '"point"')
    return entry_of(caller.move(Verb.SETTLE, version, outcome=outcome, refuse=refuse), applied=True)


class RetentionRules:
    @pytest.mark.parametrize("purged", [True, False])
    def test_a_key_is_refused_from_its_expiry_to_its_last_microsecond(
        self, purged: bool, caller: Caller, clock: PinnedClock
    ) -> None:
        """Rule 6. A begin writes nothing, and another fingerprint is a mismatch first."""
        settled = _settled(caller, REFUSE)
        expires_at, refuse_until = clock() + RETAIN, clock() + RETAIN + REFUSE
        assert (settled.expires_at, settled.refuse_until) == (expires_at, refuse_until)
        clock.set(expires_at - 1)
        write = begin()
        assert found(write, caller.one(write)) == Replay(settled)
        assert caller.store.purge(10) == 0

        clock.set(expires_at)
        if purged:
            assert [caller.store.purge(10), caller.store.purge(10)] == [1, 0]
        for now in (expires_at, refuse_until - 1):
            clock.set(now)
            there = caller.read()
            assert there is not None
            assert there.version == settled.version
            result = caller.one(write)
            assert (result.applied, found(write, result)) == (False, Expired(there))
            other = begin(fingerprint="0" * 64)
            assert found(other, caller.one(other)) == Mismatch(there)

        clock.set(refuse_until)
        claim = found(write, caller.one(write))
        assert isinstance(claim, Claim)
        assert (claim.before, claim.attempt, claim.version > settled.version) == (None, 1, True)
        assert (claim.entry.refuse_until, claim.entry.recovery) == (None, None)

    def test_purge_drops_the_result_of_a_refused_key_and_deletes_it_later(
        self, caller: Caller, clock: PinnedClock
    ) -> None:
        """Rule 6."""
        version = caller.hold().version
        caller.append(version, 1, b"chunk")
        settled = entry_of(
            caller.move(Verb.SETTLE, version, outcome=Outcome(200, "{}", None, 1), refuse=REFUSE), applied=True
        )
        clock.advance(RETAIN_SECONDS)

        assert caller.store.purge(10) == 1

        kept = caller.read()
        assert kept == settled.without_result()
        assert kept is not None
        assert (kept.status, kept.outcome, kept.recovery_seq) == (Status.COMPLETED, NOTHING, 0)
        assert caller.chunks(version) == []
        clock.advance(60)
        assert caller.store.purge(10) == 1
        assert caller.read() is None
        assert caller.hold().version > version

    def test_an_entry_settled_forever_only_loses_its_result(self, caller: Caller, clock: PinnedClock) -> None:
        """Rule 6. Later callers get a replay without a result."""
        settled = _settled(caller, EVER)
        assert (settled.expires_at, settled.refuse_until) == (None, clock() + RETAIN)
        clock.advance(RETAIN_SECONDS - 0.000001)
        assert caller.store.purge(10) == 0

        clock.advance(0.000001)
        assert [caller.store.purge(10), caller.store.purge(10)] == [1, 0]

        clock.advance(RETAIN_SECONDS * 4000)
        assert caller.store.purge(10) == 0
        kept = settled.without_result()
        assert (kept.expires_at, kept.refuse_until, kept.outcome, kept.recovery) == (None, None, NOTHING, None)
        write = begin()
        assert found(write, caller.one(write)) == Replay(kept)

    @pytest.mark.parametrize("refuse", [0, REFUSE, EVER])
    @pytest.mark.parametrize("purged", [True, False])
    def test_a_forgotten_entry_is_absent_at_once_and_its_versions_go_on(
        self, refuse: int, purged: bool, caller: Caller, clock: PinnedClock
    ) -> None:
        """Rule 4. Also after the result was dropped, and only under its version."""
        settled = _settled(caller, refuse)
        if refuse:
            clock.advance(RETAIN_SECONDS)
            assert caller.store.purge(10) == 1
        entry_of(caller.move(Verb.FORGET, settled.version - 1), applied=False)

        forgotten = entry_of(caller.move(Verb.FORGET, settled.version, note="why"), applied=True)

        assert forgotten.absent(clock())
        assert (forgotten.version, forgotten.note, forgotten.outcome) == (settled.version, "why", NOTHING)
        entry_of(caller.move(Verb.FORGET, settled.version), applied=False)
        if purged:
            assert [caller.store.purge(10), caller.store.purge(10), caller.read()] == [1, 0, None]
        write = begin(fingerprint="0" * 64)
        claim = found(write, caller.one(write))
        assert isinstance(claim, Claim)
        assert (claim.before, claim.attempt, claim.version > settled.version) == (None, 1, True)
        assert (claim.entry.refuse_until, claim.entry.recovery) == (None, None)

    @pytest.mark.parametrize("refuse", [REFUSE, EVER])
    def test_a_verdict_of_committed_refuses_too_and_a_failure_never_does(
        self, refuse: int, caller: Caller, clock: PinnedClock
    ) -> None:
        """Rule 6."""
        version = caller.hold().version
        caller.move(Verb.DOUBT, version)
        upheld = entry_of(caller.move(Verb.UPHOLD, version, refuse=refuse), applied=True)
        assert upheld.refuse_until is not None
        failing = caller.hold("failing").version
        caller.move(Verb.FAIL, failing, "failing", refuse=refuse)
        clock.advance(RETAIN_SECONDS)

        assert caller.begin("failing").applied
        assert not caller.begin(KEY).applied

    def test_a_purge_counts_results_that_it_drops_towards_its_limit(self, caller: Caller, clock: PinnedClock) -> None:
        """Rule 7."""
        for number, refuse in enumerate([0, REFUSE, EVER, REFUSE, EVER, 0, EVER]):
            key = f"key-{number}"
            caller.move(Verb.SETTLE, caller.hold(key).version, key, outcome=DONE, refuse=refuse)
        clock.advance(RETAIN_SECONDS)

        assert [caller.store.purge(3) for _ in range(4)] == [3, 3, 1, 0]
        assert len(caller.scan()) == 5
