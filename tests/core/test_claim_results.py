"""The meaning of a write result for its caller, also after an earlier result was lost."""

from __future__ import annotations

from dataclasses import replace

import pytest

from onceward.core.claim import (
    Append,
    Begin,
    Busy,
    Claim,
    Entry,
    InDoubt,
    Mismatch,
    Move,
    Replay,
    Status,
    Verb,
    WriteResult,
    committed,
    found,
)
from onceward.core.outcome import Outcome

NOW = 1_000_000
BEGIN = Begin("s", "k", "mine", "print", "h", repeatable=True, lease=10, retain=10)
ENTRY = Entry("s", "k", "print", Status.IN_PROGRESS, 5, 1, "theirs", "h", True, NOW + 7, NOW + 17, NOW - 1)
OWN = replace(ENTRY, write_id="mine")


def refused(entry: Entry | None, *, locked: bool = False) -> WriteResult:
    return WriteResult(applied=False, entry=entry, now=NOW, locked=locked)


def applied(entry: Entry, before: Status | None = None) -> WriteResult:
    return WriteResult(applied=True, entry=entry, now=NOW, before=before)


@pytest.mark.parametrize(("before", "took_over"), [(None, False), (Status.FAILED, False), (Status.IN_PROGRESS, True)])
def test_an_applied_begin_is_a_claim_that_says_what_it_replaced(before: Status | None, took_over: bool) -> None:
    claim = found(BEGIN, applied(OWN, before))

    assert claim == Claim(OWN, before)
    assert isinstance(claim, Claim)
    assert (claim.version, claim.attempt, claim.took_over) == (5, 1, took_over)


def test_a_begin_that_left_the_key_in_doubt_says_so() -> None:
    entry = replace(OWN, status=Status.IN_DOUBT)

    assert found(BEGIN, applied(entry, Status.IN_PROGRESS)) == InDoubt(entry)


@pytest.mark.parametrize(("attempt", "before"), [(1, None), (2, Status.IN_PROGRESS), (9, Status.IN_PROGRESS)])
def test_a_refusal_that_shows_our_own_write_id_is_our_own_claim(attempt: int, before: Status | None) -> None:
    entry = replace(OWN, attempt=attempt)

    assert found(BEGIN, refused(entry)) == Claim(entry, before)


def test_a_refused_begin_returns_the_existing_entry() -> None:
    for status, value in (
        (Status.IN_PROGRESS, Busy),
        (Status.IN_DOUBT, InDoubt),
        (Status.COMPLETED, Replay),
    ):
        entry = replace(ENTRY, status=status)

        assert type(found(BEGIN, refused(entry))) is value


@pytest.mark.parametrize(("lease_until", "retry_after"), [(NOW + 7, 7), (NOW, 0), (NOW - 5, 0)])
def test_a_busy_result_has_the_remaining_time_of_the_lease(lease_until: int, retry_after: int) -> None:
    entry = replace(ENTRY, lease_until=lease_until)

    assert found(BEGIN, refused(entry)) == Busy(entry, retry_after)
    assert found(BEGIN, refused(entry, locked=True)) == Busy(entry, retry_after, locked=True)


@pytest.mark.parametrize("status", Status)
def test_another_fingerprint_is_a_mismatch_in_every_state(status: Status) -> None:
    entry = replace(ENTRY, status=status, fingerprint="other")

    assert found(BEGIN, refused(entry)) == Mismatch(entry)


@pytest.mark.parametrize("fingerprint", ["print", "other"])
def test_a_free_key_whose_row_is_locked_is_busy_for_a_moment(fingerprint: str) -> None:
    """A locked row decides nothing yet, and an expired entry is not a mismatch."""
    for entry in (
        replace(ENTRY, status=Status.COMPLETED, expires_at=NOW, fingerprint=fingerprint),
        replace(ENTRY, status=Status.FAILED, expires_at=NOW, fingerprint=fingerprint),
    ):
        assert found(BEGIN, refused(entry, locked=True)) == Busy(entry, 0, locked=True)


def test_a_failed_key_whose_row_is_locked_is_busy_for_a_moment() -> None:
    entry = replace(ENTRY, status=Status.FAILED)

    assert found(BEGIN, refused(entry, locked=True)) == Busy(entry, 0, locked=True)


def test_a_store_that_returns_nothing_for_a_begin_is_an_error() -> None:
    with pytest.raises(AssertionError):
        found(BEGIN, refused(None))


SETTLE = Move("s", "k", "mine", Verb.SETTLE, 5)
APPEND = Append("s", "k", "mine", 5, 3, (b"a", b"b"))


def test_an_applied_write_is_committed() -> None:
    assert committed(SETTLE, applied(OWN))
    assert committed(APPEND, applied(OWN))


def test_a_refusal_that_shows_our_own_write_id_is_our_own_commit() -> None:
    assert committed(SETTLE, refused(replace(OWN, status=Status.COMPLETED)))
    assert committed(APPEND, refused(OWN))


@pytest.mark.parametrize("entry", [None, ENTRY, replace(ENTRY, version=6), replace(OWN, version=6)])
def test_any_other_refusal_means_that_the_claim_is_lost(entry: Entry | None) -> None:
    assert not committed(SETTLE, refused(entry))
    assert not committed(APPEND, refused(entry))


@pytest.mark.parametrize(("chunks", "known"), [(1, False), (2, False), (3, False), (4, True), (5, False)])
def test_an_append_followed_by_a_renewal_is_recognised_by_its_count(chunks: int, known: bool) -> None:
    entry = replace(ENTRY, outcome=Outcome(chunks=chunks))

    assert committed(APPEND, refused(entry)) is known
    assert not committed(APPEND, refused(replace(entry, version=6)))
    assert not committed(SETTLE, refused(entry))
