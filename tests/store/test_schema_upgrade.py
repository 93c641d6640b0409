"""A ledger of schema 1, opened by this version: every entry reads as before, and every verb works on it."""

from __future__ import annotations

import json
import shutil
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.backends import Servers
from tests.servers.redis import prefix_of

from onceward.core.claim import (
    EVER,
    Append,
    Begin,
    Busy,
    Claim,
    Entry,
    Expired,
    InDoubt,
    Mark,
    Move,
    Ref,
    Replay,
    Status,
    Verb,
    Write,
    found,
)
from onceward.core.outcome import Outcome
from onceward.store import Store
from onceward.store.open import open_store
from onceward.store.sqlite.rows import DROPPABLE, LAPSED
from onceward.testing import PinnedClock

FIXTURES = Path(__file__).parent / "fixtures" / "schema_1"
SCOPE = "onceward:call"
SECOND = 1_000_000
# Where the clock stood after the last write.
STOPPED_AT = 1_788_224_400 * SECOND
KINDS = ("sqlite", "postgres", "redis")


def sqlite_url(_: Servers, folder: Path) -> str:
    shutil.copy(FIXTURES / "ledger.db", folder / "ledger.db")
    return f"sqlite:///{folder}/ledger.db"


def postgres_url(servers: Servers, _: Path) -> str:
    url = servers.postgres.create_database()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute((FIXTURES / "ledger.sql").read_bytes())
    return url


def redis_url(servers: Servers, _: Path) -> str:
    url = servers.redis.fresh_url()
    with servers.redis.client() as client:
        for verb, name, *words in json.loads((FIXTURES / "redis_commands.json").read_text()):
            here = name.replace("onceward", prefix_of(url), 1).encode("latin-1")
            client.execute_command(verb, here, *(word.encode("latin-1") for word in words))  # type: ignore[no-untyped-call]
    return url


URLS: dict[str, Callable[[Servers, Path], str]] = {"sqlite": sqlite_url, "postgres": postgres_url, "redis": redis_url}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def url(kind: str, servers: Servers, tmp_path: Path) -> str:
    """A ledger as schema 1 left it."""
    return URLS[kind](servers, tmp_path)


@pytest.fixture
def clock() -> PinnedClock:
    return PinnedClock(STOPPED_AT)


@pytest.fixture
def store(url: str, clock: PinnedClock) -> Iterator[Store]:
    with closing(open_store(url, clock=clock)) as store:
        yield store


def before(kind: str) -> dict[str, tuple[Entry, list[bytes]]]:
    """Return the entries as the code of schema 1 read them, with their chunks."""
    return dict(map(_entry, json.loads((FIXTURES / f"{kind}.json").read_text())))


def _entry(fields: dict[str, Any]) -> tuple[str, tuple[Entry, list[bytes]]]:
    chunks = [chunk.encode("latin-1") for chunk in fields.pop("chunks")]
    outcome = fields.pop("outcome")
    body = None if outcome["body"] is None else outcome["body"].encode("latin-1")
    status = Status(fields.pop("status"))
    # A field that schema 1 lacks is shown as the time of the first attempt.
    entry = Entry(
        **fields, status=status, outcome=Outcome(**{**outcome, "body": body}), claimed_at=fields["created_at"]
    )
    return entry.key, (entry, chunks)


def begin(key: str, write_id: str = "new") -> Begin:
    return Begin(SCOPE, key, write_id, "f" * 64, "new holder", repeatable=True, lease=SECOND, retain=60 * SECOND)


def move(verb: Verb, entry: Entry, **more: Any) -> Move:
    return Move(SCOPE, entry.key, f"{verb} {entry.key}", verb, entry.version, retain=60 * SECOND, **more)


def test_every_entry_reads_as_before(kind: str, store: Store) -> None:
    expected = before(kind)
    assert len(expected) == 13

    page = store.scan(SCOPE, None, "", 100)

    assert {entry.key: entry for entry in page.entries} == {key: entry for key, (entry, _) in expected.items()}
    assert store.read([entry.ref for entry, _ in expected.values()]).entries == tuple(e for e, _ in expected.values())
    for entry, chunks in expected.values():
        assert store.chunks(entry.ref, entry.version, 0, 100) == chunks


def test_a_begin_finds_the_same_result_as_schema_1_in_every_status(kind: str, store: Store) -> None:
    wanted = {
        "failed": Claim, "held": Busy, "held and renewed": Busy, "held with chunks": Busy, "in doubt": InDoubt,
        "in doubt by a begin": InDoubt, "lapsed, may be repeated": Claim, "lapsed, may not be repeated": InDoubt,
        "released": Claim, "settled": Replay, "settled with chunks": Replay, "settled without a value": Replay,
        "taken over": Busy, "never asked for": Claim,
    }  # fmt: skip
    writes = [begin(key) for key in wanted]

    results = store.commit(writes)

    assert {w.key: type(found(w, a)) for w, a in zip(writes, results, strict=True)} == wanted
    versions = {key: entry.version for key, (entry, _) in before(kind).items()}
    for write, result in zip(writes, results, strict=True):
        if result.applied and result.entry is not None and result.entry.status is Status.IN_PROGRESS:
            assert result.entry.version > versions.get(write.key, 0)
            assert result.entry.claimed_at == STOPPED_AT


def test_the_holders_of_old_claims_can_continue(kind: str, store: Store, clock: PinnedClock) -> None:
    held, chunked, doubted = (before(kind)[key][0] for key in ("held", "held with chunks", "in doubt"))
    clock.advance(1)

    renewed, appended, late = store.commit(
        [
            move(Verb.RENEW, held, lease=SECOND),
            Append(SCOPE, chunked.key, "more", chunked.version, 3, (b"three",)),
            move(Verb.SETTLE, doubted, outcome=Outcome(body=b"a late receipt")),
        ]
    )
    settled = store.commit([move(Verb.SETTLE, chunked, outcome=Outcome(200, None, None, 3))])[0]

    assert all(result.applied for result in (renewed, appended, late, settled))
    assert renewed.entry is not None
    assert renewed.entry.claimed_at == held.created_at
    assert store.chunks(chunked.ref, chunked.version, 0, 10) == [b"one", b"two", b"three"]
    assert store.read([Ref(SCOPE, "in doubt")]).entries == (late.entry,)


def test_old_doubts_can_be_resolved(kind: str, store: Store) -> None:
    upheld, overturned = (before(kind)[key][0] for key in ("in doubt", "in doubt by a begin"))

    results = store.commit([move(Verb.UPHOLD, upheld, outcome=Outcome(body=b"1")), move(Verb.OVERTURN, overturned)])

    assert [result.entry.status for result in results if result.entry] == [Status.COMPLETED, Status.FAILED]


def test_an_old_claim_that_lapsed_is_found_and_goes_in_doubt(kind: str, store: Store) -> None:
    lapsed = before(kind)["lapsed, may not be repeated"][0]
    assert list(store.lapsed(10)) == [lapsed]

    result = store.commit([move(Verb.ABANDON, lapsed)])[0]

    assert result.entry == replace(lapsed, status=Status.IN_DOUBT, write_id=f"abandon {lapsed.key}")
    assert list(store.lapsed(10)) == []


def test_old_entries_are_purged_when_they_expire(kind: str, store: Store, clock: PinnedClock) -> None:
    assert store.purge(100) == 1  # the released one
    clock.advance(2 * 86_400)
    assert store.purge(100) == 8

    left = {entry.key for entry in store.scan(None, None, "", 100).entries}
    assert left == {key for key, (entry, _) in before(kind).items() if entry.expires_at is None}


def test_concurrent_openings_upgrade_an_old_ledger_once(url: str, clock: PinnedClock) -> None:
    gate = threading.Barrier(6)
    outcomes: list[object] = []

    def work(number: int) -> None:
        with closing(open_store(url, clock=clock)) as store:
            gate.wait(30)
            try:
                outcomes.append(store.commit([begin(f"new {number}", f"w{number}")])[0].applied)
            except Exception as error:  # noqa: BLE001  # shown by the assertion
                outcomes.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert outcomes == [True] * 6


def numbers(kind: str, url: str, servers: Servers) -> tuple[int, ...]:
    """`schema_version`, which processes of schema 1 compare with 1, then `readable_from` and `upgraded_to`."""
    sql = "SELECT schema_version, readable_from, upgraded_to FROM platform_idempotency_meta"
    if kind == "sqlite":
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as db:
            return tuple(db.execute(sql).fetchone())
    if kind == "postgres":
        with psycopg.connect(url) as connection:
            return tuple(connection.execute(sql).fetchone() or ())
    names = ("schema", "readable_from", "upgraded_to")
    return tuple(int(servers.redis.execute("GET", f"{prefix_of(url)}:{{00}}:{name}")) for name in names)


def test_the_version_numbers_let_processes_of_schema_1_continue(
    kind: str, url: str, store: Store, servers: Servers
) -> None:
    """The numbers stay until a write needs a column that they do not know. The count of attempts does not."""
    held = before(kind)["held"][0]
    store.commit([move(Verb.NOT_DONE, held)])
    entry = store.commit([begin("held")])[0].entry
    assert entry is not None
    store.commit([move(Verb.SETTLE, entry)])

    assert numbers(kind, url, servers) == (1, 1, 2)


NEEDING: dict[str, Callable[[Entry], Write]] = {
    "mark": lambda held: Mark(SCOPE, held.key, "w", held.version, 1, "1"),
    "refuse": lambda held: move(Verb.SETTLE, held, refuse=SECOND),
    "ever": lambda held: move(Verb.SETTLE, held, refuse=EVER),
}


@pytest.mark.parametrize("write", NEEDING)
def test_the_first_write_that_they_would_damage_keeps_out_processes_of_schema_1(
    kind: str, url: str, store: Store, servers: Servers, clock: PinnedClock, write: str
) -> None:
    held = before(kind)["held"][0]

    assert store.commit([NEEDING[write](held)])[0].applied

    assert numbers(kind, url, servers) == (2, 2, 2)
    with closing(open_store(url, clock=clock)) as again:
        assert again.read([held.ref]).entries[0] is not None


def test_an_old_entry_can_be_marked_and_its_result_dropped(kind: str, store: Store, clock: PinnedClock) -> None:
    held, doubted = (before(kind)[key][0] for key in ("held", "in doubt"))
    marks = [Mark(SCOPE, entry.key, f"w {entry.key}", entry.version, 1, '"x"') for entry in (held, doubted)]
    assert all(result.applied for result in store.commit(marks))

    store.commit([move(Verb.SETTLE, held, refuse=SECOND), move(Verb.UPHOLD, doubted, refuse=EVER)])
    clock.advance(60)
    store.purge(100)

    kept = store.read([held.ref, doubted.ref]).entries
    assert [None if one is None else one.recovery for one in kept] == [None, None]
    writes = [begin(held.key), begin(doubted.key)]
    assert [type(found(w, a)) for w, a in zip(writes, store.commit(writes), strict=True)] == [Expired, Replay]


# The cost of finding lapsed claims.


def test_sqlite_finds_lapsed_claims_by_their_index(tmp_path: Path) -> None:
    with closing(open_store(f"sqlite:///{tmp_path}/new.db")) as store:
        store.read([])
    with closing(sqlite3.connect(tmp_path / "new.db")) as db:
        plan = db.execute(f"EXPLAIN QUERY PLAN {LAPSED}", ("2026", 500)).fetchall()

    assert [row[3] for row in plan] == [
        "SEARCH platform_idempotency_keys USING INDEX idx_idempotency_keys_lapse (lease_until<?)"
    ]


def test_postgres_finds_lapsed_claims_by_their_index(servers: Servers) -> None:
    url = servers.postgres.create_database()
    with closing(open_store(url)) as store:
        store.commit([replace(begin(f"k{n}", f"w{n}"), lease=10**12) for n in range(500)])
    with psycopg.connect(url) as connection:
        connection.execute("SET enable_seqscan = off")
        plan = connection.execute("EXPLAIN SELECT * FROM onceward_lapsed_v2(NULL, 500)").fetchall()

    assert "Index Scan using idx_idempotency_keys_lapse" in "\n".join(row[0] for row in plan)


def test_redis_reads_no_entry_with_a_running_lease(servers: Servers, clock: PinnedClock) -> None:
    url = servers.redis.fresh_url()

    def calls() -> int:
        return int(servers.redis.execute("INFO", "commandstats")["cmdstat_hmget"]["calls"])

    with closing(open_store(url, clock=clock)) as store:
        once = [replace(begin(f"k{n}", f"w{n}"), repeatable=False, lease=(n + 1) * SECOND) for n in range(200)]
        store.commit(once)
        store.lapsed(500)  # the first one in the life of a store looks at everything unfinished
        clock.advance(3)
        before = calls()
        found = store.lapsed(500)

        assert (len(found), calls() - before) == (3, 3)


# The cost of dropping results of entries that never expire.


def test_sqlite_finds_results_to_drop_by_their_index(tmp_path: Path) -> None:
    with closing(open_store(f"sqlite:///{tmp_path}/new.db")) as store:
        entry = store.commit([begin("k")])[0].entry
        assert entry is not None
        store.commit([move(Verb.SETTLE, entry, refuse=EVER)])
    with closing(sqlite3.connect(tmp_path / "new.db")) as db:
        plan = db.execute(f"EXPLAIN QUERY PLAN {DROPPABLE}", ("2026", 500)).fetchall()

    assert [row[3] for row in plan] == [
        "SEARCH platform_idempotency_keys USING INDEX idx_idempotency_keys_drop (refuse_until>? AND refuse_until<?)"
    ]
