"""Time: the store's clock is the only clock, and retention counts from the end of the work."""

# ruff: noqa: S101, PLR2004  # These are tests.

from __future__ import annotations

from onceward.core.claim import Ref, Status, Verb
from onceward.testing.caller import (
    LEASE,
    LEASE_SECONDS,
    RETAIN,
    RETAIN_SECONDS,
    SCOPE,
    Caller,
    OpenStore,
    begin,
    entry_of,
    move,
)
from onceward.testing.clock import SECOND, START, PinnedClock

TEN_YEARS = 10 * 366 * 86_400 * SECOND


class TickingClock:
    """Clock that advances by one second with every call."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> int:
        self.now += SECOND
        return self.now


class TimeRules:
    def test_results_and_reads_carry_the_time_of_the_given_clock(self, caller: Caller, clock: PinnedClock) -> None:
        """Rule 5."""
        for now in (START, START + 1, START + TEN_YEARS, 1, 2**31 * SECOND + 7):
            clock.set(now)

            assert caller.begin().now == now
            assert caller.store.read([Ref(SCOPE, "other")]).now == now

    def test_one_batch_has_one_time(self, open_store: OpenStore) -> None:
        """Rule 5."""
        store = open_store(TickingClock())

        results = store.commit([begin(f"key-{number}") for number in range(20)])

        assert len({result.now for result in results}) == 1
        for result in results:
            entry = entry_of(result, applied=True)
            assert (entry.created_at, entry.lease_until) == (result.now, result.now + LEASE)

    def test_times_are_stored_to_the_microsecond(self, caller: Caller, clock: PinnedClock) -> None:
        """Rule 5."""
        for number in range(10):
            clock.set(START + number * 111_111_111_111_111)
            entry = caller.hold(f"key-{number}")
            settled = entry_of(caller.move(Verb.SETTLE, entry.version, f"key-{number}"), applied=True)

            assert (settled.created_at, settled.completed_at) == (clock(), clock())
            assert settled.expires_at == clock() + RETAIN

    def test_a_retention_of_ten_years_is_stored_exactly(self, caller: Caller, clock: PinnedClock) -> None:
        """Rule 6."""
        version = caller.hold().version

        entry = entry_of(caller.move(Verb.SETTLE, version, retain=TEN_YEARS), applied=True)

        assert entry.expires_at == clock() + TEN_YEARS
        clock.set(START + TEN_YEARS - 1)
        assert not caller.begin().applied

    def test_retention_counts_from_the_end_of_the_claim_and_not_from_its_beginning(
        self, caller: Caller, clock: PinnedClock
    ) -> None:
        """Rule 6."""
        for verb in (Verb.SETTLE, Verb.FAIL):
            version = caller.hold(verb).version
            clock.advance(LEASE_SECONDS * 1000)
            entry = entry_of(caller.move(verb, version, verb), applied=True)

            assert (entry.completed_at, entry.expires_at) == (clock(), clock() + RETAIN)

    def test_retention_after_doubt_counts_from_the_verdict(self, caller: Caller, clock: PinnedClock) -> None:
        """Rule 6."""
        for verb in (Verb.SETTLE, Verb.UPHOLD, Verb.OVERTURN):
            version = caller.hold(verb).version
            caller.move(Verb.DOUBT, version, verb)
            clock.advance(RETAIN_SECONDS * 10)
            entry = entry_of(caller.move(verb, version, verb), applied=True)

            assert (entry.completed_at, entry.expires_at) == (clock(), clock() + RETAIN)

    def test_an_outcome_lasts_until_its_last_microsecond(self, caller: Caller, clock: PinnedClock) -> None:
        """Rule 6."""
        settled = entry_of(caller.move(Verb.SETTLE, caller.hold().version), applied=True)
        assert settled.expires_at is not None

        clock.set(settled.expires_at - 1)
        assert entry_of(caller.begin(), applied=False) == settled

        clock.set(settled.expires_at)
        result = caller.begin()
        assert entry_of(result, applied=True).attempt == 1
        assert result.before is None

    def test_a_failure_counts_attempts_until_its_last_microsecond(self, caller: Caller, clock: PinnedClock) -> None:
        """Rule 6."""
        for offset, attempt, before in ((-1, 2, Status.FAILED), (0, 1, None)):
            key = f"key{offset}"
            failed = entry_of(caller.move(Verb.FAIL, caller.hold(key).version, key), applied=True)
            assert failed.expires_at is not None

            clock.set(failed.expires_at + offset)
            result = caller.begin(key)
            assert entry_of(result, applied=True).attempt == attempt
            assert result.before is before

    def test_a_released_key_is_free_at_once(self, caller: Caller, clock: PinnedClock) -> None:
        """Rule 6."""
        released = entry_of(caller.move(Verb.RELEASE, caller.hold().version), applied=True)

        assert (released.status, released.expires_at) == (Status.FAILED, clock())
        assert released.absent(clock())
        assert entry_of(caller.begin(fingerprint="0" * 64), applied=True).attempt == 1

    def test_the_time_of_the_first_claim_is_kept_through_retries_and_forgotten_with_the_entry(
        self, caller: Caller, clock: PinnedClock
    ) -> None:
        """Rule 6."""
        first = caller.hold()
        clock.advance(5)
        caller.move(Verb.FAIL, first.version)
        clock.advance(5)
        second = caller.hold()
        clock.advance(LEASE_SECONDS)
        third = caller.hold()
        caller.move(Verb.SETTLE, third.version)
        clock.advance(RETAIN_SECONDS)
        fourth = caller.hold()

        assert first.created_at == second.created_at == third.created_at == START
        assert fourth.created_at == clock()

    def test_a_retry_clears_the_end_time_and_the_outcome_of_the_last_attempt(self, caller: Caller) -> None:
        """Rule 6."""
        caller.move(Verb.FAIL, caller.hold().version)

        retry = caller.hold()

        assert (retry.completed_at, retry.status) == (None, Status.IN_PROGRESS)

    def test_a_held_or_doubtful_entry_never_reads_as_absent(self, caller: Caller, clock: PinnedClock) -> None:
        """Rule 6."""
        caller.hold("held", repeatable=False)
        caller.hold("abandoned")
        version = caller.hold("doubtful").version
        caller.move(Verb.DOUBT, version, "doubtful")
        clock.advance(RETAIN_SECONDS * 4000)

        for key in ("held", "abandoned", "doubtful"):
            entry = caller.read(key)
            assert entry is not None
            assert not entry.absent(clock())
        assert entry_of(caller.begin("held"), applied=True).status is Status.IN_DOUBT
        assert entry_of(caller.begin("doubtful"), applied=False).status is Status.IN_DOUBT
        assert entry_of(caller.begin("abandoned"), applied=True).attempt == 2

    def test_a_read_returns_expired_entries_too(self, caller: Caller, clock: PinnedClock) -> None:
        """Rule 6."""
        settled = entry_of(caller.move(Verb.SETTLE, caller.hold().version), applied=True)
        clock.advance(RETAIN_SECONDS * 2)

        assert caller.read() == settled
        assert settled.absent(clock())

    def test_every_verb_on_an_expired_entry_is_refused(self, caller: Caller, clock: PinnedClock) -> None:
        """Rule 6."""
        settled = entry_of(caller.move(Verb.SETTLE, caller.hold().version), applied=True)
        clock.advance(RETAIN_SECONDS)

        for verb in Verb:
            assert not caller.one(move(verb, settled.version)).applied
