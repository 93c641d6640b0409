"""Specifics of PostgreSQL: round trips, refused batches that write, opening, lost and frozen servers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace

import psycopg
import pytest
from tests.backends import Servers
from tests.servers.postgres import PostgresServer

from onceward import errors
from onceward.core.claim import FINISHED, MOVES, Ref, Verb, Write, committed
from onceward.core.outcome import Outcome
from onceward.store import BatchFailed
from onceward.store.postgres import PostgresStore
from onceward.testing import PinnedClock
from onceward.testing.caller import SCOPE, append, begin, entry_of, mark, move

KEYS = [f"key-{number}" for number in range(20)]


@pytest.fixture
def url(servers: Servers) -> str:
    return servers.emptied_database()


@pytest.fixture
def store(url: str, clock: PinnedClock) -> Iterator[PostgresStore]:
    with closing(PostgresStore(url, clock)) as store:
        yield store


@pytest.fixture(scope="module")
def own_server() -> Iterator[PostgresServer]:
    """One to stop, freeze and reconfigure."""
    with PostgresServer() as server:
        yield server


def session(store: PostgresStore) -> psycopg.Connection:
    """The store's own connection."""
    store.read([])
    assert store.connection.driver is not None
    return store.connection.driver


def value(connection: psycopg.Connection, query: str) -> object:
    row = connection.execute(query).fetchone()
    assert row is not None
    return row[0]


def round_trips(connection: psycopg.Connection, step: Callable[[], object]) -> int:
    """Return how often the client asked for a response, according to libpq's trace."""
    with tempfile.TemporaryFile() as record:
        connection.pgconn.trace(record.fileno())
        step()
        connection.pgconn.untrace()
        record.seek(0)
        sent = [line.split(b"\t")[-2:] for line in record if line.split(b"\t")[1:2] == [b"F"]]
    return sum(b"Sync" in b" ".join(words) or b"Query" in b" ".join(words) for words in sent)


# The machine in SQL.


def test_the_server_has_the_same_list_of_ending_verbs(store: PostgresStore) -> None:
    ends = {verb.value: MOVES[verb][1] in FINISHED for verb in Verb}

    assert {verb: value(session(store), f"SELECT onceward_ends_v7('{verb}')") for verb in ends} == ends


def test_long_results_are_not_kept_by_the_connection(store: PostgresStore) -> None:
    session(store)
    store.commit([begin(key) for key in KEYS])
    assert store.connection._cursor is not None, "of short answers"

    replayed = store.commit([begin(key) for key in KEYS])

    assert not any(result.applied for result in replayed)
    assert store.connection._cursor is None


# Round trips, and what a refused batch leaves behind.


def test_a_batch_of_any_kind_is_one_round_trip(store: PostgresStore) -> None:
    connection = session(store)
    held = {a.entry.key: a.entry.version for a in store.commit([begin(key) for key in KEYS]) if a.entry}
    mixed: list[Write] = [
        begin("new"),
        move(Verb.SETTLE, held["key-0"], "key-0", outcome=Outcome(200, "[]", b"body")),
        move(Verb.RENEW, held["key-1"], "key-1"),
        append(held["key-2"], 1, b"a", b"b", key="key-2"),
        begin("key-3"),
    ]

    assert round_trips(connection, lambda: store.commit(mixed)) == 1
    assert round_trips(connection, lambda: store.commit([begin("key-0"), begin("key-3")])) == 1
    assert round_trips(connection, lambda: store.read([Ref(SCOPE, key) for key in KEYS])) == 1


def test_a_refused_batch_takes_no_transaction_id_no_lock_and_no_version(store: PostgresStore) -> None:
    versions = {a.entry.key: a.entry.version for a in store.commit([begin(key) for key in KEYS]) if a.entry}
    store.commit([move(Verb.SETTLE, versions[key], key) for key in KEYS[:10]])
    refused: list[Write] = [
        *(begin(key) for key in KEYS[:12]),
        replace(begin("key-12"), fingerprint="other"),
        move(Verb.SETTLE, versions["key-13"] - 1, "key-13"),
        move(Verb.UPHOLD, versions["key-14"], "key-14"),
        append(versions["key-15"], 7, b"late", key="key-15"),
        move(Verb.RENEW, 1, "never-seen"),
    ]
    connection = session(store)
    last_version = value(connection, "SELECT last_value FROM platform_idempotency_versions")

    with connection.transaction():
        results = store.commit(refused)

        assert not any(result.applied or result.locked for result in results)
        assert value(connection, "SELECT pg_current_xact_id_if_assigned()") is None
        assert value(connection, "SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND ("
                                 "locktype IN ('tuple', 'advisory', 'transactionid') OR (locktype = 'relation'"
                                 " AND mode <> 'AccessShareLock'))") == 0  # fmt: skip
    assert value(connection, "SELECT last_value FROM platform_idempotency_versions") == last_version


def test_no_batch_reads_more_rows_than_it_names_after_statistics_of_an_empty_table(
    url: str, clock: PinnedClock
) -> None:
    read = (
        "SELECT (SELECT sum(seq_tup_read) FROM pg_stat_user_tables)::int"
        " + (SELECT sum(idx_tup_read) FROM pg_stat_user_indexes)::int"
    )
    others = [begin(f"other-{number}") for number in range(2_000)]
    with closing(PostgresStore(url, clock)) as store, psycopg.connect(url, autocommit=True) as watcher:
        # One entry, so that reading the whole table is the cheapest plan; the session keeps its plans.
        store.commit([begin("first")])
        session(store).execute("VACUUM ANALYZE platform_idempotency_keys, platform_idempotency_chunks")
        _write_in_all_ways(store, clock)
        store.commit(others)
        before = _flushed(store, watcher, read)

        _write_in_all_ways(store, clock)

        # Less than half of the table, by all of these batches together.
        assert _flushed(store, watcher, read) - before < len(others) // 2


def _write_in_all_ways(store: PostgresStore, clock: PinnedClock) -> None:
    """Begin, take over, renew, append, mark, settle, read and purge a few entries."""
    keys = KEYS[:4]

    def claim() -> dict[str, int]:
        return {a.entry.key: a.entry.version for a in store.commit([begin(key) for key in keys]) if a.entry}

    versions = claim()
    store.commit([append(versions[key], 1, b"chunk", key=key) for key in keys])
    clock.advance(100)
    versions = claim()
    store.commit([move(Verb.RENEW, versions[key], key) for key in keys])
    store.commit([mark(versions[key], 1, '"here"', key=key) for key in keys])
    store.commit([append(versions[key], 1, b"chunk", key=key) for key in keys])
    store.commit([move(Verb.SETTLE, versions[key], key) for key in keys])
    store.commit([begin(key) for key in keys])
    store.chunks(Ref(SCOPE, keys[0]), versions[keys[0]], 0, 10)
    store.scan(SCOPE, None, "", 4)
    clock.advance(100_000)
    store.purge(len(keys))


def _flushed(store: PostgresStore, watcher: psycopg.Connection, query: str) -> int:
    session(store).execute("SELECT pg_stat_force_next_flush()")
    session(store).execute("SELECT 1")
    watcher.execute("SELECT pg_stat_clear_snapshot()")
    found = value(watcher, query)
    assert isinstance(found, int)
    return found


@pytest.mark.parametrize("text", ["a\x00b", "\ud800"])
def test_text_that_postgresql_cannot_store_fails_the_whole_batch_and_keeps_the_connection(
    store: PostgresStore, text: str
) -> None:
    connection = session(store)

    with pytest.raises(BatchFailed) as failure:
        store.commit([begin("good"), replace(begin("bad"), holder=text)])

    assert not failure.value.transient
    assert store.read([Ref(SCOPE, "good"), Ref(SCOPE, "bad")]).entries == (None, None)
    assert store.connection.driver is connection


# Opening.

# Eight forks of a process that has imported everything: they open the store when all have started.
_OPENERS = """
import os, sys
from onceward.store.postgres import PostgresStore
from onceward.testing.caller import begin
started, start = os.pipe(), os.pipe()
children = []
for number in range(8):
    children.append(os.fork())
    if children[-1] == 0:
        os.close(start[1])
        store = PostgresStore(sys.argv[1])
        os.write(started[1], b".")
        os.read(start[0], 1)
        answers = store.commit([begin("same"), begin(f"own-{number}")])
        os.write(1, b"%d %d\\n" % tuple(answer.applied for answer in answers))
        store.close()
        os._exit(0)
for _ in children:
    os.read(started[0], 1)
os.close(start[1])
assert [os.waitpid(child, 0)[1] for child in children] == [0] * 8
"""


def test_eight_processes_open_an_empty_database_concurrently(postgres_server: PostgresServer) -> None:
    command = [sys.executable, "-c", _OPENERS, postgres_server.create_database()]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=60)

    assert sorted(done.stdout.splitlines()) == ["0 1"] * 7 + ["1 1"]


def test_a_schema_of_a_newer_version_is_refused_and_unchanged(postgres_server: PostgresServer) -> None:
    url = postgres_server.create_database()
    with closing(PostgresStore(url)) as store, psycopg.connect(url, autocommit=True) as newer:
        store.commit([begin()])
        newer.execute("UPDATE platform_idempotency_meta SET schema_version = 2")

        with closing(PostgresStore(url)) as late, pytest.raises(errors.SchemaTooNew, match="schema 2"):
            late.commit([begin("another")])

        assert value(newer, "SELECT count(*) FROM platform_idempotency_keys") == 1


# Objects that version 5 does not have, and those that version 4 does not have in addition.
AFTER_5 = (
    "DROP FUNCTION onceward_commit_v7; DROP FUNCTION onceward_allows_v7; DROP TYPE onceward_write_v7;"
    "DROP FUNCTION onceward_ends_v7;"
)
AFTER_4 = (
    "DROP FUNCTION onceward_scan_v3; DROP FUNCTION onceward_lapsed_v2; DROP FUNCTION onceward_absent_v2;"
    "DROP FUNCTION onceward_purge_v3; DROP FUNCTION onceward_require_schema_2_v1; DROP INDEX idx_idempotency_keys_drop"
)


@pytest.mark.parametrize("missing", [AFTER_5, AFTER_5 + AFTER_4], ids=["version 5", "version 4"])
def test_a_database_of_an_earlier_version_is_upgraded_and_keeps_its_entries(
    postgres_server: PostgresServer, missing: str
) -> None:
    url = postgres_server.create_database()
    with closing(PostgresStore(url)) as store, psycopg.connect(url, autocommit=True) as before:
        held = entry_of(store.commit([begin()])[0], applied=True)
        before.execute(missing)

    with closing(PostgresStore(url)) as store:
        settled = store.commit([move(Verb.SETTLE, held.version), begin("another")])

    assert all(result.applied for result in settled)


def test_text_with_any_characters_arrives_unchanged(store: PostgresStore) -> None:
    for number, text in enumerate(
        ["\\", '"', '\\\\""', "a,b", "(a)", "{1,2}", "", " ", "NULL", "\n\t\x01", "\u00e4\U0001f600", "%s"]
    ):
        key = f"{text}{number}"
        claim = replace(begin(key), user_id=text, endpoint=text, fingerprint=text, holder=text, write_id=f"{text}w")
        held = entry_of(store.commit([claim])[0], applied=True)
        assert store.read([held.ref]).entries == (held,)
        store._cache.clear()
        outcome = Outcome(200, text, text.encode())
        settled = store.commit([replace(move(Verb.SETTLE, held.version, key, outcome=outcome), note=text)])[0]
        entry = entry_of(settled, applied=True)
        assert (entry.user_id, entry.endpoint, entry.fingerprint, entry.holder, entry.note) == (text,) * 5
        assert store.read([held.ref]).entries == (entry,)
        assert entry.outcome == outcome


def test_database_settings_that_would_break_a_guarantee_are_overridden(postgres_server: PostgresServer) -> None:
    url = postgres_server.create_database()
    name = url.rpartition("/")[2]
    with psycopg.connect(url, autocommit=True) as owner:
        owner.execute(f"ALTER DATABASE {name} SET synchronous_commit = off")
        owner.execute(f"ALTER DATABASE {name} SET default_transaction_isolation = 'serializable'")

    with closing(PostgresStore(url)) as store:
        connection = session(store)

        assert value(connection, "SHOW synchronous_commit") == "on"
        assert value(connection, "SHOW transaction_isolation") == "read committed"


@pytest.mark.parametrize(
    "url",
    [
        "postgresql:payments",
        "mysql://user:hush@127.0.0.1/payments",
        "postgresql://user:hush@127.0.0.1:port/payments",
        "postgresql://user:hush%@127.0.0.1/payments",
        "postgresql://user:hush@[127.0.0.1/payments",
        "postgresql://user:hush@127.0.0.1/payments?unheard_of=1",
        "postgresql://user:hush@127.0.0.1/payments?connect_timeout=soon",
    ],
)
def test_a_malformed_url_is_refused_before_connecting_and_not_repeated(url: str) -> None:
    with pytest.raises(errors.InvalidStoreUrl) as failure:
        PostgresStore(url)

    assert "hush" not in str(failure.value)


def test_without_psycopg_the_url_is_refused_with_the_name_of_the_extra() -> None:
    script = "import sys; sys.modules['psycopg'] = None; from onceward.store.postgres import PostgresStore"

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)

    assert "InvalidStoreUrl" in done.stderr
    assert "pip install 'onceward[postgres]'" in done.stderr


def test_an_unknown_database_and_a_wrong_password_are_reported_without_the_password(own_server: PostgresServer) -> None:
    access = own_server.data / "pg_hba.conf"
    access.write_text("host all guarded 127.0.0.1/32 scram-sha-256\n" + access.read_text())
    with psycopg.connect(own_server.url(), autocommit=True) as owner:
        owner.execute("CREATE ROLE guarded LOGIN PASSWORD 'right'")
        owner.execute("SELECT pg_reload_conf()")
    guarded = own_server.url().replace("postgres@", "guarded:hush-hush@")
    missing = own_server.url("missing").replace("postgres@", "postgres:hush-hush@")

    for url, reason in ((guarded, "password authentication failed"), (missing, '"missing" does not exist')):
        with closing(PostgresStore(url)) as store, pytest.raises(errors.StoreMisconfigured) as failure:
            store.commit([begin()])
        assert reason in str(failure.value)
        assert "hush" not in str(failure.value)
        assert failure.value.__suppress_context__


# Lost and frozen servers.


def test_a_lost_connection_is_one_error_and_the_next_call_opens_another(store: PostgresStore, url: str) -> None:
    held = entry_of(store.commit([begin()])[0], applied=True)
    with psycopg.connect(url, autocommit=True) as other:
        other.execute("SELECT pg_terminate_backend(%s, 10000)", (session(store).info.backend_pid,))

    with pytest.raises(errors.StoreUnavailable):
        store.commit([begin("another")])

    assert store.commit([move(Verb.SETTLE, held.version)])[0].applied


def test_a_restarted_server_still_has_everything_it_acknowledged(own_server: PostgresServer) -> None:
    with closing(PostgresStore(own_server.create_database())) as store:
        held = entry_of(store.commit([begin()])[0], applied=True)
        own_server.stop()
        for _ in range(2):
            with pytest.raises(errors.StoreUnavailable):
                store.commit([begin("another")])
        own_server.start()

        assert store.read([held.ref, Ref(SCOPE, "another")]).entries == (held, None)


@contextmanager
def frozen(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def test_a_frozen_server_is_given_up_and_the_write_id_shows_later_what_became_of_the_batch(
    store: PostgresStore, url: str
) -> None:
    held = entry_of(store.commit([begin()])[0], applied=True)
    settle = move(Verb.SETTLE, held.version, outcome=Outcome(body=b"paid"))
    pid = session(store).info.backend_pid
    assert store.connection.driver is not None
    store.connection.driver.seconds = 0.2

    with frozen(pid), pytest.raises(errors.StoreUnavailable, match="does not respond"):
        store.commit([settle])

    with psycopg.connect(url, autocommit=True) as other:
        # Awake again, it works off what it had received, then finds its client gone.
        while other.execute("SELECT FROM pg_stat_activity WHERE pid = %s", (pid,)).fetchone() is not None:
            pass
    result = store.commit([settle])[0]
    assert not result.applied
    assert committed(settle, result)


def test_a_frozen_server_does_not_block_new_connections_forever(own_server: PostgresServer) -> None:
    url = own_server.url() + "?connect_timeout=2"  # the shortest that libpq takes

    with (
        closing(PostgresStore(url)) as store,
        frozen(own_server.pid),
        pytest.raises(errors.StoreUnavailable, match="timeout"),
    ):
        store.commit([begin()])


def test_a_closed_store_stays_closed(store: PostgresStore) -> None:
    store.commit([begin()])
    store.close()
    store.close()

    with pytest.raises(errors.StoreClosed):
        store.commit([begin("another")])
