"""Several sessions on one PostgreSQL database: locked rows, races inside a batch, deadlocks, purge against insert."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace

import psycopg
import pytest
from tests.backends import Servers
from tests.store.postgres.blocked_batch import LOCK, submitted_until_it_waits

from onceward.core.claim import Entry, Ref, Status, Verb, Write, WriteResult
from onceward.store import BatchFailed
from onceward.store.postgres import PostgresStore
from onceward.testing import PinnedClock
from onceward.testing.caller import LEASE_SECONDS, RETAIN_SECONDS, SCOPE, begin, entry_of, move

# A claim as a store inserts it, but in a transaction that the test keeps open.
_INSERT = (
    "INSERT INTO platform_idempotency_keys (scope, key, user_id, endpoint, fingerprint, version, attempt, write_id,"
    " holder, repeatable, lease_until) VALUES (%s, %s, '', '', '', nextval('platform_idempotency_versions'), 1, 'rival',"
    " '', false, '2100-01-01')"
)


@pytest.fixture
def url(servers: Servers) -> str:
    return servers.emptied_database()


@pytest.fixture
def make(url: str, clock: PinnedClock) -> Iterator[Callable[[], PostgresStore]]:
    with ExitStack() as opened:
        yield lambda: opened.enter_context(closing(PostgresStore(url, clock)))


@pytest.fixture
def store(make: Callable[[], PostgresStore]) -> PostgresStore:
    return make()


@pytest.fixture
def other(store: PostgresStore, url: str) -> Iterator[psycopg.Connection]:
    """A connection of another program, whose transaction begins at its first statement."""
    store.read([])
    with psycopg.connect(url) as connection:
        yield connection
        connection.rollback()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as pool:
        yield pool


def hold(store: PostgresStore, key: str, *, repeatable: bool = True) -> Entry:
    return entry_of(store.commit([begin(key, repeatable=repeatable)])[0], applied=True)


def impatient(store: PostgresStore) -> None:
    """Shorten the lock timeout, so that waiting for a lock fails soon."""
    store.read([])
    assert store.connection.driver is not None
    store.connection.driver.execute("SET lock_timeout = '50ms'")


# A locked row.


def test_a_row_locked_by_another_transaction_is_reported_at_once_and_other_writes_are_applied(
    store: PostgresStore, other: psycopg.Connection, clock: PinnedClock
) -> None:
    held = {key: hold(store, key) for key in ("begun", "renewed", "settled", "free")}
    clock.advance(LEASE_SECONDS)
    for key in ("begun", "renewed", "settled"):
        other.execute(LOCK, (key,))
    impatient(store)

    results = store.commit(
        [
            begin("begun"),
            move(Verb.RENEW, held["renewed"].version, "renewed"),
            move(Verb.SETTLE, held["settled"].version, "settled"),
            begin("free"),
            begin("new"),
        ]
    )

    assert [(result.applied, result.locked) for result in results] == [(False, True)] * 3 + [(True, False)] * 2
    assert [result.entry for result in results[:3]] == [held[key] for key in ("begun", "renewed", "settled")]
    other.rollback()
    assert store.commit([begin("begun")])[0].applied


def test_a_begin_that_a_locked_entry_refuses_anyway_is_refused_normally(
    store: PostgresStore, other: psycopg.Connection
) -> None:
    held = hold(store, "busy")
    other.execute(LOCK, ("busy",))

    result = store.commit([begin("busy")])[0]

    assert result == WriteResult(applied=False, entry=held, now=result.now)


def test_purge_skips_a_locked_entry(store: PostgresStore, other: psycopg.Connection, clock: PinnedClock) -> None:
    hold(store, "locked")
    hold(store, "free")
    clock.advance(LEASE_SECONDS + RETAIN_SECONDS)
    other.execute(LOCK, ("locked",))
    impatient(store)

    assert store.purge(10) == 1
    assert [entry is None for entry in store.read([Ref(SCOPE, "free"), Ref(SCOPE, "locked")]).entries] == [True, False]


# Changes between the first read of a batch and its locks. An insert that waits for `other` holds the batch there.


def stopped_in_the_middle(
    pool: ThreadPoolExecutor, store: PostgresStore, other: psycopg.Connection, writes: list[Write]
) -> Future[list[WriteResult]]:
    """Commit the writes and a begin of "rival", which `other` inserts first. Returns when the batch waits for it."""
    other.execute(_INSERT, (SCOPE, "rival"))
    return submitted_until_it_waits(pool, store, other, [*writes, begin("rival")])


def test_the_loser_of_a_racing_insert_gets_the_entry_of_the_winner(
    pool: ThreadPoolExecutor, store: PostgresStore, other: psycopg.Connection
) -> None:
    batch = stopped_in_the_middle(pool, store, other, [])
    other.commit()

    rival = batch.result()[0]

    assert entry_of(rival, applied=False).write_id == "rival"
    assert not rival.locked


def test_other_writes_beside_a_lost_insert_get_their_stored_versions(
    pool: ThreadPoolExecutor, store: PostgresStore, other: psycopg.Connection, make: Callable[[], PostgresStore]
) -> None:
    """One write before and one after it, by key and by position in the batch."""
    batch = stopped_in_the_middle(pool, store, other, [begin("sooner"), begin("before")])
    other.commit()

    results = batch.result()

    assert [result.applied for result in results] == [True, True, False]
    returned = tuple(result.entry for result in results)
    assert make().read([Ref(SCOPE, key) for key in ("sooner", "before", "rival")]).entries == returned


def test_a_rolled_back_racing_insert_leaves_the_key_to_the_waiting_one(
    pool: ThreadPoolExecutor, store: PostgresStore, other: psycopg.Connection
) -> None:
    batch = stopped_in_the_middle(pool, store, other, [])
    other.rollback()

    assert batch.result()[0].applied


def test_a_lapsed_claim_renewed_after_the_first_read_is_not_taken_over(
    pool: ThreadPoolExecutor,
    store: PostgresStore,
    other: psycopg.Connection,
    make: Callable[[], PostgresStore],
    clock: PinnedClock,
) -> None:
    held = hold(store, "lapsed")
    clock.advance(LEASE_SECONDS)
    batch = stopped_in_the_middle(pool, store, other, [begin("lapsed")])
    renewed = make().commit([move(Verb.RENEW, held.version, "lapsed")])[0]
    other.commit()

    result = batch.result()[0]

    assert renewed.applied
    assert (result.applied, result.locked, result.entry) == (False, False, renewed.entry)


def test_a_claim_settled_after_the_first_read_is_replayed_and_not_settled_again(
    pool: ThreadPoolExecutor, store: PostgresStore, other: psycopg.Connection, make: Callable[[], PostgresStore]
) -> None:
    held = hold(store, "twice")
    batch = stopped_in_the_middle(pool, store, other, [move(Verb.FAIL, held.version, "twice")])
    settled = make().commit([move(Verb.SETTLE, held.version, "twice")])[0]
    other.commit()

    result = batch.result()[0]

    assert (result.applied, result.locked, result.entry) == (False, False, settled.entry)


def test_a_lapsed_claim_that_went_in_doubt_after_the_first_read_stays_in_doubt(
    pool: ThreadPoolExecutor,
    store: PostgresStore,
    other: psycopg.Connection,
    make: Callable[[], PostgresStore],
    clock: PinnedClock,
) -> None:
    hold(store, "lapsed")
    clock.advance(LEASE_SECONDS)
    batch = stopped_in_the_middle(pool, store, other, [begin("lapsed")])
    doubted = make().commit([begin("lapsed", repeatable=False)])[0]
    other.commit()

    result = batch.result()[0]

    assert entry_of(doubted, applied=True).status is Status.IN_DOUBT
    assert (result.applied, result.entry) == (False, doubted.entry)


def test_an_expired_entry_deleted_after_the_first_read_is_claimed_by_the_begin(
    pool: ThreadPoolExecutor, store: PostgresStore, other: psycopg.Connection, url: str, clock: PinnedClock
) -> None:
    hold(store, "expired")
    store.commit([move(Verb.SETTLE, hold(store, "settled").version, "settled")])
    clock.advance(RETAIN_SECONDS)
    batch = stopped_in_the_middle(pool, store, other, [begin("settled"), begin("expired")])
    with psycopg.connect(url, autocommit=True) as deleter:
        deleter.execute("DELETE FROM platform_idempotency_keys WHERE key = 'settled'")
    other.commit()

    settled, expired, rival = batch.result()

    assert (settled.applied, settled.before, entry_of(settled, applied=True).attempt) == (True, None, 1)
    assert (expired.applied, rival.applied) == (True, False)


# Versions across purge.


def test_purge_waits_for_inserts_in_progress_and_inserts_wait_for_purge(
    store: PostgresStore, other: psycopg.Connection, make: Callable[[], PostgresStore], clock: PinnedClock
) -> None:
    """Otherwise a version drawn before the purge, lower than that of the purged entry, could be inserted after it."""
    inserting, purging = make(), make()
    for each in (inserting, purging):
        impatient(each)
    first = hold(store, "purged")
    clock.advance(LEASE_SECONDS + RETAIN_SECONDS)
    assert inserting.connection.driver is not None
    with inserting.connection.driver.transaction():
        hold(inserting, "inserted")

        with pytest.raises(BatchFailed) as purge_refused:
            purging.purge(10)

    assert purge_refused.value.transient
    assert purging.connection.driver is not None
    with purging.connection.driver.transaction():
        assert purging.purge(10) == 1
        with pytest.raises(BatchFailed) as insert_refused:
            inserting.commit([begin("new")])
        # Only inserts are blocked; a write that finds an entry continues, even if the entry is about to be purged.
        results = inserting.commit([begin("inserted"), begin("purged")])
        assert [(result.applied, result.locked) for result in results] == [(False, False), (False, True)]
    assert insert_refused.value.transient
    assert hold(inserting, "purged").version > first.version
    assert other.execute("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'").fetchone() == (0,)


def test_a_purge_with_nothing_to_do_does_not_wait(store: PostgresStore, make: Callable[[], PostgresStore]) -> None:
    purging = make()
    impatient(purging)
    store.read([])
    assert store.connection.driver is not None
    with store.connection.driver.transaction():
        hold(store, "inserted")

        assert purging.purge(10) == 0


# Everything at once.


def test_overlapping_batches_of_every_kind_never_deadlock_and_give_each_claim_once(
    make: Callable[[], PostgresStore], pool: ThreadPoolExecutor, url: str
) -> None:
    """Workers claim a few keys in different orders and end the claims in different ways.

    So entries are inserted, taken over and purged all the time. A holder never loses its claim: at worst its entry is
    locked for a moment by a batch that read it before. Its version is greater than any seen before the begin.
    """
    keys = [f"key-{number}" for number in range(12)]
    seen: dict[str, int] = defaultdict(int)
    lock = threading.Lock()
    start = threading.Barrier(5)

    def let_go(dice: random.Random, entry: Entry) -> Write:
        verb = dice.choice([Verb.SETTLE, Verb.FAIL, Verb.RELEASE])
        retain = dice.choice([0, RETAIN_SECONDS]) if verb is Verb.FAIL else 0
        return replace(move(verb, entry.version, entry.key), retain=retain)

    def work(seed: int) -> int:
        dice = random.Random(seed)
        store = make()
        store.read([])
        start.wait()
        mine: dict[str, Entry] = {}
        claims = 0
        for _ in range(150):
            with lock:
                earlier = dict(seen)
            wanted = dice.sample(keys, dice.randint(1, len(keys)))
            writes = [let_go(dice, mine[key]) if key in mine else begin(key) for key in wanted]
            for write, result in zip(writes, store.commit(writes), strict=True):
                if write.key in mine:
                    assert result.applied or result.locked
                    if result.applied:
                        del mine[write.key]
                elif result.applied:
                    mine[write.key] = entry_of(result, applied=True)
                    assert mine[write.key].version > earlier.get(write.key, 0)
                    claims += 1
                if result.entry is not None:
                    with lock:
                        seen[write.key] = max(seen[write.key], result.entry.version)
        return claims

    def purge() -> None:
        store = make()
        store.read([])
        start.wait()
        while not all(worker.done() for worker in workers):
            store.purge(100)

    workers = [pool.submit(work, seed) for seed in range(4)]
    purger = pool.submit(purge)
    claims = sum(worker.result() for worker in workers)
    purger.result()

    assert claims > 300
    with psycopg.connect(url) as watcher:
        deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
        assert watcher.execute(deadlocks).fetchone() == (0,)


# Forks.


_FORK = """
import gc, os, sys
from onceward.store.postgres import PostgresStore
from onceward.testing.caller import begin
store = PostgresStore(sys.argv[1])
store.commit([begin("parent")])
session = store.connection.driver.info.backend_pid
child = os.fork()
if child == 0:
    store.abandon()
    gc.collect()
    answers = store.commit([begin("parent"), begin("child")])
    sys.exit([answer.applied for answer in answers] != [False, True])
assert os.waitpid(child, 0)[1] == 0
assert [answer.applied for answer in store.commit([begin("child"), begin("after")])] == [False, True]
assert store.connection.driver.info.backend_pid == session
store.close()
"""


def test_a_forked_child_opens_its_own_session_and_leaves_the_parents_open(url: str) -> None:
    done = subprocess.run([sys.executable, "-c", _FORK, url], capture_output=True, text=True, check=False, timeout=60)

    assert (done.returncode, done.stderr) == (0, "")


def test_a_store_abandoned_in_the_process_that_opened_it_closes_its_session(store: PostgresStore) -> None:
    """Otherwise the session stays open, and the server's connections are limited."""
    store.read([])
    driver = store.connection.driver
    assert driver is not None

    store.abandon()

    assert driver.closed
