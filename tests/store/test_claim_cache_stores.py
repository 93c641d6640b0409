"""Results that a store builds from its claim cache: each equals the stored entry, or is read from the store."""

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
    """A clock that does not move, so that released entries can still be read."""
    return make_store(clock)


@pytest.fixture
def other(make_store: Opener, clock: PinnedClock) -> Store:
    return make_store(clock)


def test_the_result_of_a_new_claim_equals_the_stored_entry(store: Store, other: Store) -> None:
    keys = [f"key-{number}" for number in range(12)]
    other.commit([begin("key-3"), begin("key-8")])

    results = store.commit([begin(key, repeatable=number % 2 == 0) for number, key in enumerate(keys)])

    entries = [entry_of(result, applied=result.applied) for result in results]
    assert [result.applied for result in results] == [key not in {"key-3", "key-8"} for key in keys]
    assert list(other.read([entry.ref for entry in entries]).entries) == entries


@pytest.mark.parametrize("verb", FINISHING)
@pytest.mark.parametrize("steps", ["at-once", "renewed", "written-down"])
def test_the_result_of_a_settle_from_the_cache_equals_the_stored_entry(
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


def test_cached_and_unknown_claims_of_one_batch_get_correct_results(store: Store, other: Store) -> None:
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
def test_the_cache_is_dropped_with_a_lost_connection(store: Store, other: Store, clock: PinnedClock, how: str) -> None:
    """The result may have been lost, too: here, that of a renewal."""
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
def test_changes_by_another_process_to_a_claim_are_in_the_result(
    store: Store, other: Store, clock: PinnedClock, verb: Verb
) -> None:
    """Any process that knows the version may renew the claim."""
    held = entry_of(store.commit([begin()])[0], applied=True)
    clock.advance(5)
    other.commit([move(Verb.RENEW, held.version)])

    finished = store.commit([move(verb, held.version, outcome=FINISHING[verb])])[0]

    assert other.read([held.ref]).entries == (entry_of(finished, applied=True),)


def test_a_store_without_a_cached_claim_gets_the_whole_entry(store: Store, other: Store) -> None:
    held = entry_of(store.commit([begin()])[0], applied=True)
    settled = other.commit([move(Verb.SETTLE, held.version, outcome=FINISHING[Verb.SETTLE])])[0]

    assert other.read([held.ref]).entries == (entry_of(settled, applied=True),)
    assert entry_of(settled, applied=True).user_id == "user"


def test_a_cached_claim_that_was_lost_cannot_settle(store: Store, other: Store, clock: PinnedClock) -> None:
    held = entry_of(store.commit([begin()])[0], applied=True)
    clock.advance(3600)
    taken = entry_of(other.commit([begin()])[0], applied=True)
    late = store.commit([move(Verb.SETTLE, held.version, outcome=FINISHING[Verb.SETTLE])])[0]

    assert entry_of(late, applied=False) == taken


def test_a_late_receipt_of_a_cached_claim_ends_a_doubt(store: Store, other: Store, clock: PinnedClock) -> None:
    held = entry_of(store.commit([begin(repeatable=False)])[0], applied=True)
    clock.advance(3600)
    assert entry_of(other.commit([begin(repeatable=False)])[0], applied=True).status is Status.IN_DOUBT
    late = store.commit([move(Verb.SETTLE, held.version, outcome=FINISHING[Verb.SETTLE])])[0]

    assert late.before is Status.IN_DOUBT
    assert other.read([held.ref]).entries == (entry_of(late, applied=True),)


@pytest.mark.parametrize("verb", [Verb.UPHOLD, Verb.OVERTURN])
def test_a_doubt_raised_by_another_process_is_resolved_where_the_claim_is_cached(
    store: Store, other: Store, clock: PinnedClock, verb: Verb
) -> None:
    held = entry_of(store.commit([begin(repeatable=False)])[0], applied=True)
    clock.advance(3600)
    other.commit([begin(repeatable=False)])

    resolved = store.commit([replace(move(verb, held.version), note="looked up")])[0]

    assert resolved.before is Status.IN_DOUBT
    assert other.read([held.ref]).entries == (entry_of(resolved, applied=True),)


class Forgetful(ClaimCache):
    """Forgets everything after each question, like a cache that gets far more claims than it can hold."""

    def known(self, write: Write) -> Entry | None:
        known = super().known(write)
        self.clear()
        return known


def test_a_result_is_decoded_with_the_cache_from_when_its_write_was_encoded(
    store: SqliteStore | PostgresStore | RedisStore,
) -> None:
    """A result contains little about a claim that was in the cache when its end was encoded."""
    results = store.commit([begin()])
    held = entry_of(results[0], applied=True)
    store._cache = Forgetful()
    store._cache.update([held.ref], results)

    settled = store.commit([move(Verb.SETTLE, held.version)])

    assert entry_of(settled[0], applied=True).holder == held.holder
