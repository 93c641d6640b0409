"""Answers that a store puts together from what it remembers of its claims: each is what is there, or is asked for."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.backends import Opener

from onceward.core.claim import Entry, Status, Verb, Write
from onceward.core.outcome import Outcome
from onceward.store import Store
from onceward.store.claim_cache import ClaimCache
from onceward.store.postgres import PostgresStore
from onceward.store.redis import RedisStore
from onceward.store.sqlite import SqliteStore
from onceward.testing import PinnedClock
from onceward.testing.caller import append, begin, entry_of, move

pytestmark = pytest.mark.parametrize("backend", ["sqlite", "postgres", "redis"], indirect=True)

FINISHING = {
    Verb.SETTLE: Outcome(201, '[["a","b"]]', b"body"),
    Verb.FAIL: Outcome(),
    Verb.RELEASE: Outcome(),
}


@pytest.fixture
def store(make_store: Opener, clock: PinnedClock) -> Store:
    """The clock stands still, so that what was released can still be read."""
    return make_store(clock)


@pytest.fixture
def other(make_store: Opener, clock: PinnedClock) -> Store:
    return make_store(clock)


def test_a_new_claim_is_what_is_there(store: Store, other: Store) -> None:
    keys = [f"key-{number}" for number in range(12)]
    other.commit([begin("key-3"), begin("key-8")])

    results = store.commit([begin(key, repeatable=number % 2 == 0) for number, key in enumerate(keys)])

    entries = [entry_of(result, applied=result.applied) for result in results]
    assert [result.applied for result in results] == [key not in {"key-3", "key-8"} for key in keys]
    assert list(other.read([entry.ref for entry in entries]).entries) == entries


@pytest.mark.parametrize("verb", FINISHING)
@pytest.mark.parametrize("steps", ["at-once", "renewed", "written-down"])
def test_what_was_finished_from_memory_is_what_is_there(
    store: Store, other: Store, clock: PinnedClock, verb: Verb, steps: str
) -> None:
    held = entry_of(store.commit([begin()])[0], applied=True)
    assert other.read([held.ref]).entries == (held,)
    if steps == "renewed":
        clock.advance(5)
        entry_of(store.commit([move(Verb.RENEW, held.version)])[0], applied=True)
    elif steps == "written-down":
        entry_of(store.commit([append(held.version, 1, b"a", b"b")])[0], applied=True)
    result = store.commit([replace(move(verb, held.version, outcome=FINISHING[verb]), note="why")])[0]

    assert result.before is Status.IN_PROGRESS
    assert other.read([held.ref]).entries == (entry_of(result, applied=True),)


def test_known_and_unknown_claims_of_one_batch_are_each_answered_as_they_are(store: Store, other: Store) -> None:
    keys = [f"key-{number}" for number in range(8)]
    ours = {key: entry_of(store.commit([begin(key)])[0], applied=True) for key in keys[:4]}
    theirs = {key: entry_of(other.commit([begin(key)])[0], applied=True) for key in keys[4:]}
    other.commit([move(Verb.FAIL, ours["key-1"].version, "key-1")])

    results = store.commit(
        [
            move(Verb.SETTLE, entry.version, key, outcome=FINISHING[Verb.SETTLE])
            for key, entry in (ours | theirs).items()
        ]
        + [begin("new"), begin("key-1-again")]
    )

    assert [result.applied for result in results] == [True, False, *[True] * 8]
    found = [result.entry for result in results if result.entry is not None]
    assert list(other.read([entry.ref for entry in found]).entries) == found


@pytest.mark.parametrize("how", ["hung-up", "forked"])
def test_nothing_is_remembered_across_a_connection_that_was_lost(
    store: Store, other: Store, clock: PinnedClock, how: str
) -> None:
    """An answer may have been lost with it: here, that of a renewal."""
    held = entry_of(store.commit([begin()])[0], applied=True)
    clock.advance(5)
    other.commit([move(Verb.RENEW, held.version)])
    lost = None
    if how == "hung-up" and isinstance(store, RedisStore):
        store.disconnect()
    elif how == "hung-up" and isinstance(store, PostgresStore):
        store.connection.drop()
    else:
        lost = getattr(store, "_connection", None)
        store.abandon()
    settled = store.commit([move(Verb.SETTLE, held.version, outcome=FINISHING[Verb.SETTLE])])[0]
    if lost is not None:
        lost.close()

    assert other.read([held.ref]).entries == (entry_of(settled, applied=True),)


@pytest.mark.parametrize("verb", FINISHING)
def test_what_another_process_added_to_a_claim_is_in_the_answer(
    store: Store, other: Store, clock: PinnedClock, verb: Verb
) -> None:
    """Whoever has the version may renew it, wherever it is."""
    held = entry_of(store.commit([begin()])[0], applied=True)
    clock.advance(5)
    other.commit([move(Verb.RENEW, held.version)])

    finished = store.commit([move(verb, held.version, outcome=FINISHING[verb])])[0]

    assert other.read([held.ref]).entries == (entry_of(finished, applied=True),)


def test_one_who_remembers_nothing_is_told_all_of_it(store: Store, other: Store) -> None:
    held = entry_of(store.commit([begin()])[0], applied=True)
    settled = other.commit([move(Verb.SETTLE, held.version, outcome=FINISHING[Verb.SETTLE])])[0]

    assert other.read([held.ref]).entries == (entry_of(settled, applied=True),)
    assert entry_of(settled, applied=True).user_id == "user"


def test_what_is_remembered_of_a_lost_claim_settles_nothing(store: Store, other: Store, clock: PinnedClock) -> None:
    held = entry_of(store.commit([begin()])[0], applied=True)
    clock.advance(3600)
    taken = entry_of(other.commit([begin()])[0], applied=True)
    late = store.commit([move(Verb.SETTLE, held.version, outcome=FINISHING[Verb.SETTLE])])[0]

    assert entry_of(late, applied=False) == taken


def test_a_late_receipt_from_memory_ends_a_doubt(store: Store, other: Store, clock: PinnedClock) -> None:
    held = entry_of(store.commit([begin(repeatable=False)])[0], applied=True)
    clock.advance(3600)
    assert entry_of(other.commit([begin(repeatable=False)])[0], applied=True).status is Status.IN_DOUBT
    late = store.commit([move(Verb.SETTLE, held.version, outcome=FINISHING[Verb.SETTLE])])[0]

    assert late.before is Status.IN_DOUBT
    assert other.read([held.ref]).entries == (entry_of(late, applied=True),)


@pytest.mark.parametrize("verb", [Verb.UPHOLD, Verb.OVERTURN])
def test_a_doubt_that_another_process_raised_is_resolved_where_the_claim_is_remembered(
    store: Store, other: Store, clock: PinnedClock, verb: Verb
) -> None:
    held = entry_of(store.commit([begin(repeatable=False)])[0], applied=True)
    clock.advance(3600)
    other.commit([begin(repeatable=False)])

    resolved = store.commit([replace(move(verb, held.version), note="looked up")])[0]

    assert resolved.before is Status.IN_DOUBT
    assert other.read([held.ref]).entries == (entry_of(resolved, applied=True),)


class Forgetful(ClaimCache):
    """Forgets everything once it was asked, as one does that is told of far more claims than it keeps."""

    def known(self, write: Write) -> Entry | None:
        known = super().known(write)
        self.clear()
        return known


def test_an_answer_is_read_with_what_was_known_when_it_was_asked_for(
    store: SqliteStore | PostgresStore | RedisStore,
) -> None:
    """Of a claim that was known when its end was encoded the answer says but little."""
    results = store.commit([begin()])
    held = entry_of(results[0], applied=True)
    store._cache = Forgetful()
    store._cache.update([held.ref], results)

    settled = store.commit([move(Verb.SETTLE, held.version)])

    assert entry_of(settled[0], applied=True).holder == held.holder
