"""Specifics of SQLite: other processes that write to the file, and the claim cache."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from onceward import errors
from onceward.core.claim import Begin, Move, Ref, Status, Verb
from onceward.core.outcome import Outcome
from onceward.store.sqlite import SqliteStore
from onceward.testing import PinnedClock

SECOND = 1_000_000


@pytest.fixture
def stores(tmp_path: Path, clock: PinnedClock) -> Iterator[tuple[SqliteStore, SqliteStore]]:
    """Two stores on one file, like those of two processes."""
    file = tmp_path / "ledger.db"
    with closing(SqliteStore(file, clock)) as one, closing(SqliteStore(file, clock)) as other:
        yield one, other


def begin(key: str, write_id: str) -> Begin:
    return Begin("s", key, write_id, "f", "h", repeatable=True, lease=SECOND, retain=60 * SECOND)


def move(verb: Verb, version: int, write_id: str, key: str = "k") -> Move:
    return Move("s", key, write_id, verb, version, lease=SECOND, retain=60 * SECOND, outcome=Outcome(body=b"1"))


def test_a_cached_claim_that_another_process_took_over_is_lost(
    stores: tuple[SqliteStore, SqliteStore], clock: PinnedClock
) -> None:
    one, other = stores
    mine = one.commit([begin("k", "w1")])[0].entry
    assert mine is not None
    clock.advance(2)
    theirs = other.commit([begin("k", "w2")])[0]
    assert theirs.applied

    for verb in (Verb.SETTLE, Verb.RENEW, Verb.FAIL):
        late = one.commit([move(verb, mine.version, verb)])[0]

        assert not late.applied
        assert late.entry == theirs.entry


def test_a_write_by_another_process_invalidates_every_cached_claim(
    stores: tuple[SqliteStore, SqliteStore], clock: PinnedClock
) -> None:
    """The first key reveals the other process; the second must not be decided from the cache."""
    one, other = stores
    mine = [result.entry for result in one.commit([begin("first", "w1"), begin("second", "w2")])]
    clock.advance(2)
    other.commit([begin("second", "w3")])

    versions = [entry.version for entry in mine if entry]
    assert one.commit([move(Verb.SETTLE, versions[0], "w4", "first")])[0].applied
    assert not one.commit([move(Verb.SETTLE, versions[1], "w5", "second")])[0].applied


def test_a_claim_settled_by_a_bound_transaction_is_not_cached_as_held(
    stores: tuple[SqliteStore, SqliteStore], tmp_path: Path
) -> None:
    one, _ = stores
    one.commit([begin("k", "w1")])
    with closing(sqlite3.connect(tmp_path / "ledger.db")) as bound, bound:
        bound.execute("UPDATE platform_idempotency_keys SET status = 'completed', completed_at = created_at")

    again = one.commit([begin("k", "w2")])[0]

    assert not again.applied
    assert again.entry is not None
    assert again.entry.status is Status.COMPLETED


def test_a_batch_of_cached_and_unknown_keys_gets_results_in_order(stores: tuple[SqliteStore, SqliteStore]) -> None:
    one, other = stores
    other.commit([begin("theirs", "w0")])
    first = one.commit([begin("a", "w1"), begin("b", "w2")])
    versions = [result.entry.version for result in first if result.entry]

    results = one.commit(
        [
            begin("new", "w3"),
            move(Verb.SETTLE, versions[1], "w4", "b"),
            begin("theirs", "w5"),
            move(Verb.SETTLE, versions[0], "w6", "a"),
        ]
    )

    assert [result.applied for result in results] == [True, True, False, True]
    assert [result.entry.key for result in results if result.entry] == ["new", "b", "theirs", "a"]


def test_a_refused_batch_takes_no_lock_and_writes_nothing(
    stores: tuple[SqliteStore, SqliteStore], tmp_path: Path
) -> None:
    one, _ = stores
    one.commit([begin("k", "w1")])
    log = tmp_path / "ledger.db-wal"
    size = log.stat().st_size
    with closing(sqlite3.connect(tmp_path / "ledger.db", isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")  # would make other writers wait for the lock

        results = one.commit([begin("k", "w2"), move(Verb.SETTLE, 99, "w3", "other")])
        writer.execute("ROLLBACK")

    assert [result.applied for result in results] == [False, False]
    assert log.stat().st_size == size


def test_a_lease_counts_from_when_the_lock_was_acquired_and_not_from_when_it_was_requested(tmp_path: Path) -> None:
    """The clock advances between the decision and the lock, as it does during another transaction."""
    moments = iter([1_000 * SECOND, 1_003 * SECOND])
    last = [0]

    def clock() -> int:
        last[0] = next(moments, last[0])
        return last[0]

    with closing(SqliteStore(tmp_path / "ledger.db", clock)) as store:
        # A first commit would be decided again in any case, because the state of the file is unknown.
        store.commit([begin("other", "w0")])
        moments = iter([2_000 * SECOND, 2_003 * SECOND])
        result = store.commit([begin("k", "w1")])[0]

    assert result.now == 2_003 * SECOND
    assert result.entry is not None
    assert result.entry.lease_until == 2_004 * SECOND


def test_versions_increase_although_each_process_purges_entries_of_the_other(
    stores: tuple[SqliteStore, SqliteStore], clock: PinnedClock
) -> None:
    seen = []
    for n in range(6):
        store, purger = stores if n % 2 else reversed(stores)
        entry = store.commit([begin("k", f"w{n}")])[0].entry
        assert entry is not None
        seen.append(entry.version)
        store.commit([move(Verb.RELEASE, entry.version, f"r{n}")])
        clock.advance(61)
        assert purger.purge(10) == 1

    assert seen == sorted(set(seen))


def test_a_file_that_is_not_a_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("not a database, but long enough to look like a file of some other kind" * 20)

    with pytest.raises(errors.InvalidStoreUrl, match=r"notes\.txt is not an SQLite database"):
        SqliteStore(tmp_path / "notes.txt").read([Ref("s", "k")])


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(errors.InvalidStoreUrl, match="create it first"):
        SqliteStore(tmp_path / "missing" / "ledger.db").read([Ref("s", "k")])


def test_the_columns_and_indexes_of_the_contract_exist_for_operators(tmp_path: Path) -> None:
    with closing(SqliteStore(tmp_path / "ledger.db")) as store:
        store.commit([begin("k", "w")])
    with closing(sqlite3.connect(tmp_path / "ledger.db")) as db:
        columns = {row[1] for row in db.execute("PRAGMA table_info(platform_idempotency_keys)")}
        indexes = {row[1] for row in db.execute("PRAGMA index_list(platform_idempotency_keys)")}
        status, created_at = db.execute("SELECT status, created_at FROM platform_idempotency_keys").fetchone()

    assert {"key", "user_id", "endpoint", "status", "response_status", "response_body", "completed_at"} <= columns
    assert {"idx_idempotency_keys_created", "idx_idempotency_keys_user"} <= indexes
    assert status == "in_progress"
    assert len(created_at) == len("2026-01-01T00:00:00.000000Z")
