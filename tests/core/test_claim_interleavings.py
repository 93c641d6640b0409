"""Every interleaving of three callers on one key keeps the guarantees, and planted bugs break them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.core.exploration import Machine, Violation, explore
from tests.core.states import Caller

from onceward.core import claim
from onceward.core.claim import (
    FINISHED,
    Begin,
    Busy,
    Entry,
    Expired,
    Found,
    Mark,
    Move,
    Replay,
    Status,
    Verb,
    Write,
    WriteResult,
)  # fmt: skip

ONCE, AGAIN = Caller(repeatable=False, begins_left=1), Caller(repeatable=True, begins_left=1)
TWICE = Caller(repeatable=False, begins_left=2)
ONCE_REFUSING, AGAIN_REFUSING = ONCE._replace(refuses=True), AGAIN._replace(refuses=True)
ONCE_MARKING, AGAIN_MARKING = ONCE._replace(marks_left=2), AGAIN._replace(marks_left=2)

# The callers, whether a late copy of a write may arrive at any time, and the minimum number of states: a change must
# not shrink the exploration unnoticed.
WORLDS: dict[str, tuple[tuple[Caller, ...], bool, int]] = {
    "three that may not repeat": ((ONCE, ONCE, ONCE), False, 2_000),
    "three that may repeat": ((AGAIN, AGAIN, AGAIN), False, 18_000),
    "two that may not and one that may": ((ONCE, ONCE, AGAIN), False, 12_000),
    "one that may not and two that may": ((ONCE, AGAIN, AGAIN), False, 24_000),
    "two that may not, with late copies": ((ONCE, ONCE), True, 3_500),
    "two that may, with late copies": ((AGAIN, AGAIN), True, 11_000),
    "one that may not, asked twice, with late copies": ((TWICE,), True, 600),
    "two that may and mark": ((AGAIN_MARKING, AGAIN_MARKING), False, 12_000),
    "two that may not, of which one marks, with late copies": ((ONCE_MARKING, ONCE), True, 21_000),
    "one that may not, is asked twice and marks, with late copies": ((TWICE._replace(marks_left=2),), True, 3_500),
    "one that may, is asked twice and marks, with late copies": ((AGAIN_MARKING._replace(begins_left=2),), True, 9_000),
    "two that may not and refuse": ((ONCE_REFUSING, ONCE_REFUSING), False, 400),
    "two that may and refuse": ((AGAIN_REFUSING, AGAIN_REFUSING), False, 1_400),
    "one that may and refuses, and one that may not, with late copies": ((AGAIN_REFUSING, ONCE), True, 20_000),
    "one that may not, is asked twice and refuses, with late copies": ((TWICE._replace(refuses=True),), True, 800),
}


@pytest.mark.parametrize("world", WORLDS)
def test_every_interleaving_keeps_the_guarantees(world: str) -> None:
    """One outcome, at most one irreversible effect, increasing versions, and no doubt that ends by itself."""
    callers, late_copies, states_min = WORLDS[world]

    states = explore(callers, Machine(), late_copies=late_copies)

    assert states >= states_min


def without_a_fence(entry: Entry | None, write: Write, now: int, version: int) -> Entry | None:
    """Mutant: a takeover keeps the version of the claim that it takes over."""
    after = claim.apply(entry, write, now, version)
    if after is None or entry is None or entry.absent(now):
        return after
    return replace(after, version=entry.version)


def settling_without_a_version(entry: Entry | None, write: Write, now: int, version: int) -> Entry | None:
    return claim.apply(entry, by_key(entry, write, Verb.SETTLE), now, version)


def releasing_by_key(entry: Entry | None, write: Write, now: int, version: int) -> Entry | None:
    return claim.apply(entry, by_key(entry, write, Verb.RELEASE), now, version)


def failing_by_key(entry: Entry | None, write: Write, now: int, version: int) -> Entry | None:
    return claim.apply(entry, by_key(entry, write, Verb.FAIL), now, version)


def renewing_by_key(entry: Entry | None, write: Write, now: int, version: int) -> Entry | None:
    return claim.apply(entry, by_key(entry, write, Verb.RENEW), now, version)


def by_key(entry: Entry | None, write: Write, verb: Verb) -> Write:
    if entry is not None and isinstance(write, Move) and write.verb is verb:
        return replace(write, version=entry.version)
    return write


def doubt_as_failure(entry: Entry | None, write: Write, now: int, version: int) -> Entry | None:
    if entry is not None and entry.status is Status.IN_DOUBT and isinstance(write, Begin):
        entry = replace(entry, status=Status.FAILED)
    return claim.apply(entry, write, now, version)


def a_lapsed_lease_as_permission(entry: Entry | None, write: Write, now: int, version: int) -> Entry | None:
    """Mutant: every caller after the lease runs, whatever the holder declared."""
    if entry is not None and isinstance(write, Begin):
        entry, write = replace(entry, repeatable=True), replace(write, repeatable=True)
    return claim.apply(entry, write, now, version)


def only_the_newcomer_decides(entry: Entry | None, write: Write, now: int, version: int) -> Entry | None:
    if entry is not None and isinstance(write, Begin):
        entry = replace(entry, repeatable=True)
    return claim.apply(entry, write, now, version)


def only_the_holder_decides(entry: Entry | None, write: Write, now: int, version: int) -> Entry | None:
    if entry is not None and not entry.absent(now) and isinstance(write, Begin):
        write = replace(write, repeatable=entry.repeatable)
    return claim.apply(entry, write, now, version)


def without_a_lease(entry: Entry | None, write: Write, now: int, version: int) -> Entry | None:
    if entry is not None and isinstance(write, Begin):
        entry = replace(entry, lease_until=now)
    return claim.apply(entry, write, now, version)


def death_of_anyone(entry: Entry | None, write: Write, now: int, version: int) -> Entry | None:
    """Mutant: a proof that any holder is dead counts as a proof that this one is."""
    if entry is not None and isinstance(write, Begin) and write.dead:
        write = replace(write, dead=entry.version)
    return claim.apply(entry, write, now, version)


def abandoning_without_a_lease(entry: Entry | None, write: Write, now: int, version: int) -> Entry | None:
    if isinstance(write, Move) and write.verb is Verb.ABANDON:
        write = replace(write, verb=Verb.ABANDON_DEAD)
    return claim.apply(entry, write, now, version)


def abandoning_as_a_failure(entry: Entry | None, write: Write, now: int, version: int) -> Entry | None:
    """Mutant: an abandoned claim counts as failed."""
    if entry is not None and entry.abandoned:
        entry = replace(entry, completed_at=now)
    return claim.apply(entry, write, now, version)


def settling_twice(entry: Entry | None, write: Write, now: int, version: int) -> Entry | None:
    if entry is not None and entry.status is Status.COMPLETED and isinstance(write, Move) and not entry.absent(now):
        entry = replace(entry, status=Status.IN_PROGRESS)
    return claim.apply(entry, write, now, version)


def settling_a_failure(entry: Entry | None, write: Write, now: int, version: int) -> Entry | None:
    """Mutant: a late settle after the holder's own fail is accepted; a retry may be running by then."""
    if entry is not None and isinstance(write, Move) and write.verb is Verb.SETTLE and entry.status is Status.FAILED:
        entry = replace(entry, status=Status.IN_PROGRESS, version=write.version)
    return claim.apply(entry, write, now, version)


def running_what_is_settled(entry: Entry | None, write: Write, now: int, version: int) -> Entry | None:
    if isinstance(write, Begin) and entry is not None and entry.status in FINISHED:
        entry = None
    return claim.apply(entry, write, now, version)


def doubt_that_a_failure_ends(entry: Entry | None, write: Write, now: int, version: int) -> Entry | None:
    """Mutant: a holder whose claim is in doubt may still fail it, and so free the key."""
    if entry is not None and entry.status is Status.IN_DOUBT and isinstance(write, Move) and write.verb is Verb.FAIL:
        entry = replace(entry, status=Status.IN_PROGRESS)
    return claim.apply(entry, write, now, version)


def doubt_that_expires(entry: Entry | None, write: Write, now: int, version: int) -> Entry | None:
    after = claim.apply(entry, write, now, version)
    if after is not None and after.status is Status.IN_DOUBT:
        return replace(after, expires_at=now + 1)
    return after


def held_work_that_expires(entry: Entry | None, write: Write, now: int, version: int) -> Entry | None:
    """Mutant: native expiry on a claim that may not be repeated."""
    after = claim.apply(entry, write, now, version)
    if after is not None and after.status is Status.IN_PROGRESS:
        return replace(after, expires_at=after.lease_until + 1)
    return after


def failing_as_settling(entry: Entry | None, write: Write, now: int, version: int) -> Entry | None:
    after = claim.apply(entry, write, now, version)
    if after is not None and isinstance(write, Move) and write.verb is Verb.SETTLE:
        return replace(after, status=Status.FAILED)
    return after


APPLY_MUTANTS: list[Callable[[Entry | None, Write, int, int], Entry | None]] = [
    without_a_fence,
    settling_without_a_version,
    releasing_by_key,
    failing_by_key,
    renewing_by_key,
    doubt_as_failure,
    a_lapsed_lease_as_permission,
    only_the_newcomer_decides,
    only_the_holder_decides,
    without_a_lease,
    death_of_anyone,
    settling_twice,
    abandoning_without_a_lease,
    abandoning_as_a_failure,
    settling_a_failure,
    running_what_is_settled,
    doubt_that_a_failure_ends,
    doubt_that_expires,
    held_work_that_expires,
    failing_as_settling,
]


def found_by_key(write: Begin, result: WriteResult) -> Found:
    """Mutant: every caller takes a held claim for its own."""
    if result.entry is not None:
        result = replace(result, entry=replace(result.entry, write_id=write.write_id))
    return claim.found(write, result)


def found_without_memory(write: Begin, result: WriteResult) -> Found:
    """Mutant: a refused begin is busy, even if the entry shows the caller's own write."""
    if not result.applied and result.entry is not None and result.entry.status is Status.IN_PROGRESS:
        return Busy(result.entry, 0)
    return claim.found(write, result)


def committed_by_version(write: Move | Mark, result: WriteResult) -> bool:
    return result.entry is not None and result.entry.version == write.version


def committed_without_memory(write: Move | Mark, result: WriteResult) -> bool:  # noqa: ARG001  # that is the bug
    return result.applied


def purging_by_age_alone(entry: Entry, now: int) -> bool:
    return entry.lease_until <= now


OTHER_MUTANTS: dict[str, Machine] = {
    "found by key": Machine(found=found_by_key),
    "found without memory": Machine(found=found_without_memory),
    "committed by version": Machine(committed=committed_by_version),
    "committed without memory": Machine(committed=committed_without_memory),
    "purging by age alone": Machine(purgeable=purging_by_age_alone),
}
MUTANTS = {mutant.__name__.replace("_", " "): Machine(apply=mutant) for mutant in APPLY_MUTANTS} | OTHER_MUTANTS


def explore_pairs(rules: Machine) -> None:
    """Explore worlds of two callers, which are enough to find each of these bugs. The smallest come first."""
    for callers in ((ONCE, ONCE), (ONCE, AGAIN), (AGAIN, AGAIN), (ONCE, AGAIN._replace(begins_left=2))):
        explore(callers, rules, late_copies=False)


def marking_in_any_order(entry: Entry | None, write: Write, now: int, version: int) -> Entry | None:
    """Mutant: an old mark overwrites a new one."""
    if entry is not None and isinstance(write, Mark):
        entry = replace(entry, recovery_seq=0)
    return claim.apply(entry, write, now, version)


def marking_by_key(entry: Entry | None, write: Write, now: int, version: int) -> Entry | None:
    """Mutant: a mark is accepted after a takeover."""
    if entry is not None and isinstance(write, Mark):
        write = replace(write, version=entry.version)
    return claim.apply(entry, write, now, version)


def losing_marks_in_doubt(entry: Entry | None, write: Write, now: int, version: int) -> Entry | None:
    after = claim.apply(entry, write, now, version)
    if after is not None and after.status is Status.IN_DOUBT and not isinstance(write, Mark):
        return replace(after, recovery=None, recovery_seq=0)
    return after


def losing_marks_on_takeover(entry: Entry | None, write: Write, now: int, version: int) -> Entry | None:
    after = claim.apply(entry, write, now, version)
    return replace(after, recovery=None, recovery_seq=0) if after is not None and isinstance(write, Begin) else after


def mark_committed_by_write_id(write: Move | Mark, result: WriteResult) -> bool:
    """Mutant: a mark is recognised only while it is the last write."""
    same = result.entry is not None and result.entry.write_id == write.write_id
    return result.applied or same if isinstance(write, Mark) else claim.committed(write, result)


MARK_MUTANTS = {
    "marking in any order": Machine(apply=marking_in_any_order),
    "marking by key": Machine(apply=marking_by_key),
    "losing marks in doubt": Machine(apply=losing_marks_in_doubt),
    "losing marks on takeover": Machine(apply=losing_marks_on_takeover),
    "mark committed by write id": Machine(committed=mark_committed_by_write_id),
}


def explore_markers(rules: Machine) -> None:
    for callers in ((ONCE_MARKING,), (ONCE_MARKING, ONCE), (AGAIN_MARKING, AGAIN)):
        explore(callers, rules, late_copies=True)


def running_what_is_refused(entry: Entry | None, write: Write, now: int, version: int) -> Entry | None:
    if isinstance(write, Begin) and entry is not None and entry.expired(now):
        entry = None
    return claim.apply(entry, write, now, version)


def replaying_what_is_refused(write: Begin, result: WriteResult) -> Found:
    found = claim.found(write, result)
    return Replay(found.entry) if isinstance(found, Expired) else found


def purging_what_is_refused(entry: Entry, now: int) -> bool:
    return entry.expires_at is not None and entry.expires_at <= now


def dropping_results_early(entry: Entry, now: int) -> bool:  # noqa: ARG001  # that is the bug
    return entry.refuse_until is not None


REFUSAL_MUTANTS = {
    "running what is refused": Machine(apply=running_what_is_refused),
    "replaying what is refused": Machine(found=replaying_what_is_refused),
    "purging what is refused": Machine(purgeable=purging_what_is_refused),
    "dropping results early": Machine(droppable=dropping_results_early),
}


@pytest.mark.parametrize("mutant", REFUSAL_MUTANTS)
def test_a_bug_planted_in_refused_keys_is_caught(mutant: str) -> None:
    with pytest.raises(Violation, match="schedule"):
        explore((ONCE_REFUSING, ONCE_REFUSING), REFUSAL_MUTANTS[mutant], late_copies=False)


@pytest.mark.parametrize("mutant", MARK_MUTANTS)
def test_a_bug_planted_in_marks_is_caught(mutant: str) -> None:
    with pytest.raises(Violation, match="schedule"):
        explore_markers(MARK_MUTANTS[mutant])


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_planted_bug_is_caught(mutant: str) -> None:
    with pytest.raises(Violation, match="schedule"):
        explore_pairs(MUTANTS[mutant])
