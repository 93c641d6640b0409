"""Chunk log of a claim, for streams and for bodies that are too large to be stored inside the entry."""

# ruff: noqa: S101, PLR2004  # These are tests.

from __future__ import annotations

import pytest

from onceward.core.claim import Ref, Verb
from onceward.core.outcome import CHUNK_BYTES_MAX, NOTHING, Outcome
from onceward.store import PAGE_MAX
from onceward.testing.caller import LEASE_SECONDS, RETAIN_SECONDS, SCOPE, Caller, entry_of
from onceward.testing.clock import PinnedClock


class ChunkRules:
    def test_chunks_are_read_in_order_from_any_position(self, caller: Caller) -> None:
        """Rule 2."""
        version = caller.hold().version
        caller.append(version, 1, b"one")
        caller.append(version, 2, b"two", b"three")
        entry = entry_of(caller.append(version, 4, b"four"), applied=True)

        assert entry.outcome.chunks == 4
        assert caller.chunks(version) == [b"one", b"two", b"three", b"four"]
        assert caller.chunks(version, after=2) == [b"three", b"four"]
        assert caller.chunks(version, after=1, limit=2) == [b"two", b"three"]
        assert caller.chunks(version, after=4) == []
        assert caller.chunks(version, after=99) == []

    def test_chunks_keep_every_byte(self, caller: Caller) -> None:
        """Rule 7."""
        chunks = [b"", bytes(range(256)), b"\x00", "\N{SNOWMAN}".encode(), b"\xff" * CHUNK_BYTES_MAX]
        version = caller.hold().version

        assert caller.append(version, 1, *chunks).applied
        assert caller.chunks(version) == chunks

    @pytest.mark.parametrize("seq", [0, 2, 3, 99])
    def test_an_append_with_a_gap_or_a_repetition_is_refused(self, seq: int, caller: Caller) -> None:
        """Rule 2."""
        version = caller.hold().version

        assert not caller.append(version, seq, b"x").applied
        assert caller.chunks(version) == []

        caller.append(version, 1, b"one", b"two")
        assert not caller.append(version, 1, b"x").applied
        assert not caller.append(version, 2, b"x").applied
        assert caller.chunks(version) == [b"one", b"two"]

    def test_only_the_holder_can_append(self, caller: Caller, clock: PinnedClock) -> None:
        """Rule 2."""
        first = caller.hold()
        caller.append(first.version, 1, b"old")
        clock.advance(LEASE_SECONDS)
        second = caller.hold()

        assert not caller.append(first.version, 2, b"late").applied
        assert not caller.append(first.version, 1, b"late").applied
        assert not caller.append(second.version + 1, 1, b"never").applied
        assert caller.append(second.version, 1, b"new").applied
        assert caller.chunks(second.version) == [b"new"]

    def test_a_lapsed_holder_may_append_until_another_begins(self, caller: Caller, clock: PinnedClock) -> None:
        """Rule 2."""
        version = caller.hold().version
        clock.advance(LEASE_SECONDS * 100)

        assert caller.append(version, 1, b"x").applied

    def test_a_takeover_drops_the_chunks_of_the_previous_holder(self, caller: Caller, clock: PinnedClock) -> None:
        """Rule 2."""
        first = caller.hold()
        caller.append(first.version, 1, b"a", b"b", b"c")
        clock.advance(LEASE_SECONDS)

        second = caller.hold()

        assert second.outcome == NOTHING
        assert caller.chunks(first.version) == []
        assert caller.chunks(second.version) == []
        caller.append(second.version, 1, b"new")
        assert caller.chunks(second.version) == [b"new"]

    @pytest.mark.parametrize("verb", [Verb.FAIL, Verb.RELEASE])
    def test_a_retry_starts_with_an_empty_log(self, verb: Verb, caller: Caller) -> None:
        """Rule 2."""
        first = caller.hold()
        caller.append(first.version, 1, b"a", b"b")
        caller.move(verb, first.version)

        second = caller.hold()

        assert caller.chunks(second.version) == []
        caller.append(second.version, 1, b"new")
        assert caller.chunks(second.version) == [b"new"]

    def test_a_claim_after_expiry_starts_with_an_empty_log(self, caller: Caller, clock: PinnedClock) -> None:
        """Rule 2."""
        first = caller.hold()
        caller.append(first.version, 1, b"a")
        caller.move(Verb.SETTLE, first.version, outcome=Outcome(chunks=1))
        clock.advance(RETAIN_SECONDS)

        second = caller.hold()

        assert caller.chunks(first.version) == []
        assert caller.chunks(second.version) == []

    def test_settled_chunks_stay_with_the_outcome(self, caller: Caller) -> None:
        """Rule 2."""
        version = caller.hold().version
        caller.append(version, 1, b"a", b"b")

        settled = entry_of(caller.move(Verb.SETTLE, version, outcome=Outcome(200, "{}", None, 2)), applied=True)

        assert settled.outcome == Outcome(200, "{}", None, 2)
        assert not caller.append(version, 3, b"c").applied
        assert caller.chunks(version) == [b"a", b"b"]

    def test_chunks_survive_doubt_and_a_late_receipt(self, caller: Caller, clock: PinnedClock) -> None:
        """Rule 2."""
        version = caller.hold(repeatable=False).version
        caller.append(version, 1, b"a")
        clock.advance(LEASE_SECONDS)
        caller.begin()

        assert not caller.append(version, 2, b"b").applied
        assert caller.move(Verb.SETTLE, version, outcome=Outcome(chunks=1)).applied
        assert caller.chunks(version) == [b"a"]

    def test_the_log_of_another_version_or_key_is_empty(self, caller: Caller) -> None:
        """Rule 2."""
        version = caller.hold().version
        caller.append(version, 1, b"a")

        for other in (0, version - 1, version + 1):
            assert caller.chunks(other) == []
        assert caller.store.chunks(Ref(SCOPE, "never-was"), version, 0, 10) == []
        assert caller.store.chunks(Ref("elsewhere", "the-key"), version, 0, 10) == []

    def test_logs_of_different_keys_do_not_mix(self, caller: Caller) -> None:
        """Rule 1."""
        one, other = caller.hold("one").version, caller.hold("other").version
        caller.append(one, 1, b"1", key="one")
        caller.append(other, 1, b"2", b"3", key="other")

        assert caller.chunks(one, key="one") == [b"1"]
        assert caller.chunks(other, key="other") == [b"2", b"3"]

    def test_a_renewal_leaves_the_log_alone(self, caller: Caller) -> None:
        """Rule 2."""
        version = caller.hold().version
        caller.append(version, 1, b"a")
        caller.move(Verb.RENEW, version)

        assert caller.append(version, 2, b"b").applied
        assert caller.chunks(version) == [b"a", b"b"]

    def test_a_long_log_is_read_page_by_page(self, caller: Caller) -> None:
        """Rule 7."""
        version = caller.hold().version
        chunks = [str(number).encode() for number in range(PAGE_MAX + 7)]
        caller.append(version, 1, *chunks[:300])
        caller.append(version, 301, *chunks[300:])

        first = caller.chunks(version, 0, PAGE_MAX)
        second = caller.chunks(version, PAGE_MAX, PAGE_MAX)

        assert (len(first), first + second) == (PAGE_MAX, chunks)
