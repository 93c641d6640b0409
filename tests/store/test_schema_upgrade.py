"""A ledger of schema 1, opened by this version: every entry reads as before, and every verb works on it."""

from __future__ import annotations

import hashlib
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

from onceward.core.claim import Append, Begin, Busy, Claim, Entry, InDoubt, Move, Ref, Replay, Status, Verb, found
from onceward.core.outcome import Outcome
from onceward.store import Store
from onceward.store.open import open_store
from onceward.store.sqlite.rows import LAPSED
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
    """The entries as the code of schema 1 read them, with their chunks."""
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
    told: list[object] = []

    def work(number: int) -> None:
        with closing(open_store(url, clock=clock)) as store:
            gate.wait(30)
            try:
                told.append(store.commit([begin(f"new {number}", f"w{number}")])[0].applied)
            except Exception as error:  # noqa: BLE001  # shown by the assertion
                told.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert told == [True] * 6


def test_the_version_numbers_let_processes_of_schema_1_continue(
    kind: str, url: str, store: Store, servers: Servers
) -> None:
    store.read([])

    if kind == "sqlite":
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as db:
            row = db.execute(
                "SELECT schema_version, readable_from, upgraded_to FROM platform_idempotency_meta"
            ).fetchone()
    elif kind == "postgres":
        with psycopg.connect(url) as connection:
            row = connection.execute(
                "SELECT schema_version, readable_from, upgraded_to FROM platform_idempotency_meta"
            ).fetchone()
    else:
        names = ("schema", "readable_from", "upgraded_to")
        row = tuple(int(servers.redis.execute("GET", f"{prefix_of(url)}:{{00}}:{name}")) for name in names)

    assert row == (1, 1, 2)


# Fields that outlive an attempt. The columns exist; the code that fills them comes later.

KEPT = ("recovery_point", "recovery_seq", "refuse_until", "not_done_count")
TABLE = "platform_idempotency_keys"


class Columns:
    """The new columns of one key, read and written behind the store's back. Bytes and numbers, as text where that differs."""

    def __init__(self, kind: str, url: str, servers: Servers) -> None:
        self._kind, self._url, self._servers = kind, url, servers

    def fill(self, key: str) -> None:
        if self._kind == "redis":
            pairs = [word for name in KEPT for word in (name, "5")]
            self._servers.redis.execute("HSET", self._name(key), *pairs)
            return
        point, until = ("'5'", "'5'") if self._kind == "sqlite" else ("'5'::bytea", "to_timestamp(5)")
        self._sql(
            f"UPDATE {TABLE} SET recovery_point = {point}, recovery_seq = 5, refuse_until = {until}, not_done_count = 5"  # noqa: S608
            f" WHERE key = '{key}'"
        )

    def there(self, key: str) -> set[str]:
        """Those that are set."""
        if self._kind == "redis":
            found = self._servers.redis.execute("HMGET", self._name(key), *KEPT)
        else:
            (found,) = self._sql(f"SELECT {', '.join(KEPT)} FROM {TABLE} WHERE key = '{key}'")  # noqa: S608
        return {name for name, value in zip(KEPT, found, strict=True) if value is not None}

    def _name(self, key: str) -> str:
        bucket = hashlib.sha256(f"{SCOPE}\0{key}".encode()).digest()[0]
        return f"{prefix_of(self._url)}:{{{bucket:02x}}}:e:{SCOPE}\0{key}"

    def _sql(self, statement: str) -> list[Any]:
        if self._kind == "sqlite":
            with closing(sqlite3.connect(self._url.removeprefix("sqlite:///"))) as db, db:
                return db.execute(statement).fetchall()
        with psycopg.connect(self._url, autocommit=True) as connection:
            done = connection.execute(statement)
            return done.fetchall() if done.description else []


def test_lasting_fields_survive_every_write_until_the_key_is_free_again(
    kind: str, url: str, store: Store, servers: Servers, clock: PinnedClock
) -> None:
    columns = Columns(kind, url, servers)
    (entry,) = (result.entry for result in store.commit([begin("mine", "w1")]))
    assert entry is not None
    columns.fill("mine")

    def kept(write: Begin | Move | Append) -> Entry:
        result = store.commit([write])[0]
        assert result.applied
        assert result.entry is not None
        assert columns.there("mine") == set(KEPT), f"{write} dropped some"
        return result.entry

    kept(move(Verb.RENEW, entry, lease=SECOND))
    kept(Append(SCOPE, "mine", "w2", entry.version, 1, (b"chunk",)))
    clock.advance(2)
    entry = kept(begin("mine", "takes over"))
    entry = kept(move(Verb.FAIL, entry))
    entry = kept(begin("mine", "tries again"))
    clock.advance(2)
    kept(move(Verb.ABANDON, entry))
    entry = kept(begin("mine", "after an abandoned one"))
    kept(move(Verb.DOUBT, entry))
    kept(move(Verb.SETTLE, entry, outcome=Outcome(body=b"1")))

    clock.advance(61)
    assert store.commit([begin("mine", "free again")])[0].applied
    assert columns.there("mine") == set()


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
        plan = connection.execute("EXPLAIN SELECT * FROM onceward_lapsed_v1(NULL, 500)").fetchall()

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
