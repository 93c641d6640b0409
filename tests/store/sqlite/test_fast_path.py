"""A single write is one statement, and as safe as the transaction that it replaces."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from onceward.core.claim import Begin, Ref, Status, Verb, WriteResult
from onceward.core.outcome import Outcome
from onceward.store.sqlite import SqliteStore
from onceward.testing import PinnedClock
from onceward.testing.caller import append, begin, entry_of, move

SECOND = 1_000_000


@pytest.fixture
def store(tmp_path: Path, clock: PinnedClock) -> Iterator[SqliteStore]:
    with closing(SqliteStore(tmp_path / "ledger.db", clock)) as store:
        yield store


@pytest.fixture
def other(store: SqliteStore, clock: PinnedClock) -> Iterator[SqliteStore]:
    """A store like that of another process on the same file."""
    with closing(SqliteStore(store.path, clock)) as other:
        yield other


def statements(store: SqliteStore) -> list[str]:
    """Record the first word of every later SQLite statement."""
    executed: list[str] = []
    assert store._db is not None
    store._db.set_trace_callback(lambda statement: executed.append(statement.split(maxsplit=1)[0]))
    return executed


def test_a_claim_is_one_select_and_one_insert_and_its_end_is_one_update(store: SqliteStore) -> None:
    entry_of(store.commit([begin("warm")])[0], applied=True)
    executed = statements(store)

    claimed = entry_of(store.commit([begin("k")])[0], applied=True)
    store.commit([move(Verb.RENEW, claimed.version, "k")])
    store.commit([move(Verb.SETTLE, claimed.version, "k", outcome=Outcome(body=b"1"))])
    replayed = store.commit([begin("k")])[0]

    assert executed == ["SELECT", "INSERT", "UPDATE", "UPDATE", "SELECT"]
    assert not replayed.applied
    assert entry_of(replayed, applied=False).outcome.body == b"1"


def test_changes_by_another_process_to_a_claim_are_not_overwritten(store: SqliteStore, other: SqliteStore) -> None:
    claimed = entry_of(store.commit([begin("k")])[0], applied=True)
    entry_of(other.commit([append(claimed.version, 1, b"chunk", key="k")])[0], applied=True)

    renewed = entry_of(store.commit([move(Verb.RENEW, claimed.version, "k")])[0], applied=True)

    assert renewed.outcome.chunks == 1
    assert other.read([claimed.ref]).entries == (renewed,)


def test_a_key_that_another_process_takes_between_select_and_insert_stays_with_it(
    store: SqliteStore, other: SqliteStore, clock: PinnedClock
) -> None:
    store.commit([begin("warm")])
    taken: list[WriteResult] = []

    def take_it() -> int:
        """Take the key when the clock is read, which is between the two."""
        if not taken:
            taken.append(other.commit([begin("k")])[0])
        return clock()

    store._clock = take_it
    late = store.commit([begin("k")])[0]

    assert taken[0].applied
    assert not late.applied
    assert late.entry == taken[0].entry


def test_a_version_is_above_those_that_another_process_has_purged(
    store: SqliteStore, other: SqliteStore, clock: PinnedClock
) -> None:
    versions = []
    for _ in range(3):
        claimed = entry_of(store.commit([begin("k")])[0], applied=True)
        versions.append(claimed.version)
        store.commit([move(Verb.RELEASE, claimed.version, "k")])
        clock.advance(10_000_000)
        assert other.purge(10) == 1

    assert versions == sorted(set(versions))


@pytest.mark.parametrize("together", [1, 2])
def test_times_count_from_when_the_lock_was_acquired(tmp_path: Path, together: int) -> None:
    moments: Iterator[int] = iter([])
    last = [1_000 * SECOND]

    def clock() -> int:
        last[0] = next(moments, last[0])
        return last[0]

    def batch(write: Begin) -> list[Begin]:
        return [write, replace(write, key="another", write_id="another")][:together]

    with closing(SqliteStore(tmp_path / "ledger.db", clock)) as store:
        store.commit([begin("warm")])
        moments = iter([2_000 * SECOND, 2_003 * SECOND])
        claim = replace(begin("k"), lease=SECOND, retain=60 * SECOND)
        claimed = entry_of(store.commit(batch(claim))[0], applied=True)
        stored = store.read([Ref(claim.scope, "k")]).entries[0]
        moments = iter([2_003 * SECOND, 2_006 * SECOND])
        settle = replace(move(Verb.SETTLE, claimed.version, "k"), retain=60 * SECOND)
        settled = entry_of(store.commit([settle])[0], applied=True)
        found = store.read([Ref(claim.scope, "k")]).entries[0]

    assert claimed.lease_until == 2_004 * SECOND
    assert stored == claimed
    assert (settled.status, settled.completed_at, settled.expires_at) == (
        Status.COMPLETED,
        2_006 * SECOND,
        2_066 * SECOND,
    )
    assert found == settled


@pytest.mark.parametrize("verb", [None, Verb.RENEW])
def test_a_decision_made_before_a_long_wait_for_the_lock_is_never_visible(tmp_path: Path, verb: Verb | None) -> None:
    """A reader would take a claim that lapsed meanwhile for one of a dead holder."""
    now = [1_000 * SECOND]
    late = iter([False, True])
    lapsed: list[bool] = []

    def clock() -> int:
        """Advance two seconds while the lock is awaited, and read the entry whenever the time is read."""
        now[0] += 2 * SECOND * next(late, False)
        entry = other.read([Ref(claim.scope, "k")]).entries[0]
        lapsed.append(entry is not None and entry.lapsed(now[0]))
        return now[0]

    claim = replace(begin("k", repeatable=False), lease=SECOND)
    path = tmp_path / "ledger.db"
    clocks: list[Callable[[], int]] = [lambda: now[0]]

    def latest() -> int:
        return clocks[-1]()

    with closing(SqliteStore(path, latest)) as store, closing(SqliteStore(path, clocks[0])) as other:
        store.commit([begin("warm")])
        if verb is None:
            clocks.append(clock)
            entry = entry_of(store.commit([claim])[0], applied=True)
        else:
            held = entry_of(store.commit([replace(claim, lease=60 * SECOND)])[0], applied=True)
            clocks.append(clock)
            renewal = replace(move(verb, held.version, "k"), lease=SECOND)
            entry = entry_of(store.commit([renewal])[0], applied=True)

    assert len(lapsed) > 1
    assert not any(lapsed)
    assert entry.lease_until == 1_003 * SECOND
