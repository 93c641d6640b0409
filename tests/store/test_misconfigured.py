"""Errors that an operator must correct are `StoreMisconfigured`, temporary ones are `StoreUnavailable`, on every store."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from tests.servers.postgres import PostgresServer
from tests.servers.redis import RedisServer

from onceward import errors
from onceward.core.claim import Write, WriteResult
from onceward.ledger import Ledger
from onceward.store.check import check
from onceward.store.open import open_store
from onceward.store.postgres import PostgresStore
from onceward.store.postgres.roles import ledger_grants
from onceward.testing.caller import begin, mark


def failure(url: str) -> errors.StoreUnavailable:
    with closing(open_store(url)) as store, pytest.raises(errors.StoreUnavailable) as caught:
        store.commit([begin()])
    return caught.value


def failure_of_check(url: str) -> errors.StoreUnavailable:
    with closing(open_store(url)) as store, pytest.raises(errors.StoreUnavailable) as caught:
        check(store)
    return caught.value


# PostgreSQL.


@pytest.fixture
def role(postgres_server: PostgresServer) -> Iterator[str]:
    """A role without any privilege."""
    name = f"role_{os.getpid()}"
    with psycopg.connect(postgres_server.url(), autocommit=True) as owner:
        owner.execute(f"CREATE ROLE {name} LOGIN")
        yield name
        owner.execute(f"DROP ROLE {name}")


def as_role(url: str, role: str) -> str:
    return url.replace("postgres@", f"{role}@")


@pytest.fixture
def made(postgres_server: PostgresServer, role: str) -> Iterator[tuple[str, psycopg.Connection]]:
    """A database with the ledger's tables, and its owner's connection."""
    url = postgres_server.create_database()
    with closing(open_store(url)) as store:
        store.read([])
    with psycopg.connect(url, autocommit=True) as owner:
        yield url, owner
        owner.execute(f"DROP OWNED BY {role}")


def test_a_role_that_may_not_create_the_tables_is_told_how_to_create_them(
    postgres_server: PostgresServer, role: str
) -> None:
    raised = failure(as_role(postgres_server.create_database(), role))

    assert (type(raised), raised.code, raised.retryable) == (errors.StoreMisconfigured, "store-misconfigured", False)
    assert "permission denied for schema public" in str(raised)
    assert "onceward schema print --ledger URL --role ROLE" in str(raised)


def test_a_role_that_may_not_use_the_tables_is_refused(made: tuple[str, psycopg.Connection], role: str) -> None:
    url, owner = made
    closed = failure(as_role(url, role))
    owner.execute(f"GRANT SELECT ON platform_idempotency_meta, platform_idempotency_keys TO {role}")
    half = failure(as_role(url, role))
    checked = failure_of_check(as_role(url, role))

    assert isinstance(closed, errors.StoreMisconfigured)
    assert isinstance(half, errors.StoreMisconfigured)
    assert isinstance(checked, errors.StoreMisconfigured)
    assert "INSERT ON platform_idempotency_keys" in str(checked)


def test_a_role_that_may_only_read_the_schema_numbers_can_still_record_a_recovery_point(
    made: tuple[str, psycopg.Connection], role: str
) -> None:
    """The first mark raises the schema numbers, so that processes of schema 1 do not drop the recovery point."""
    url, owner = made
    owner.execute(ledger_grants(role).encode())
    with closing(open_store(as_role(url, role))) as store:
        entry = store.commit([begin()])[0].entry
        assert entry is not None
        assert store.commit([mark(entry.version, 1, "1")])[0].applied

    row = owner.execute("SELECT schema_version, readable_from FROM platform_idempotency_meta").fetchone()
    assert row == (2, 2)


def test_an_unknown_role_is_a_misconfiguration_and_too_many_connections_are_not(
    made: tuple[str, psycopg.Connection], role: str
) -> None:
    url, owner = made
    owner.execute(f"ALTER ROLE {role} CONNECTION LIMIT 0")

    assert isinstance(failure(as_role(url, "nobody_of_that_name")), errors.StoreMisconfigured)
    crowded = failure(as_role(url, role))
    assert type(crowded) is errors.StoreOverloaded
    assert "OperationalError: connection failed" in str(crowded)
    assert "too many connections for role" in str(crowded)


def test_a_read_only_server_is_a_misconfiguration(made: tuple[str, psycopg.Connection]) -> None:
    url, owner = made
    owner.execute("ALTER DATABASE " + url.rpartition("/")[2] + " SET default_transaction_read_only = on")

    raised = failure(url)

    assert isinstance(raised, errors.StoreMisconfigured)
    assert "name the primary" in str(raised)


def test_an_invalid_host_is_a_misconfiguration_and_an_unknown_one_may_appear() -> None:
    impossible, unknown = failure(f"postgresql://u@{'x' * 64}.example/d"), failure("postgresql://u@nowhere.invalid/d")

    assert isinstance(impossible, errors.StoreMisconfigured)
    assert type(unknown) is errors.StoreUnavailable


def test_a_misconfigured_claim_fails_at_once_without_a_retry(postgres_server: PostgresServer) -> None:
    asked: list[int] = []

    class Counted(PostgresStore):
        def commit(self, writes: Sequence[Write]) -> list[WriteResult]:
            asked.append(len(writes))
            return super().commit(writes)

    with (
        closing(Ledger(Counted(postgres_server.url("no_such_database")))) as ledger,
        pytest.raises(errors.StoreMisconfigured, match="create the database"),
    ):
        ledger.blocking.run("key", lambda: None, effect="idempotent")

    assert asked == [1]


# Redis.


def test_permanent_and_temporary_redis_errors_are_told_apart() -> None:
    raised: dict[str, errors.StoreUnavailable] = {}
    with RedisServer() as server:
        raised["DB"] = failure(server.url(99))
        raised["WRONGPASS"] = failure(server.url().replace("//", "//ada:hush-hush@"))
        server.execute("ACL", "SETUSER", "reader", "on", "nopass", "~*", "+@read", "+info")
        raised["NOPERM"] = failure(server.url().replace("//", "//reader:x@"))
        server.execute("REPLICAOF", "127.0.0.1", 1)
        raised["READONLY"] = failure(server.url())
        server.execute("REPLICAOF", "NO", "ONE")
        with closing(open_store(server.url())) as store:
            check(store)
        server.execute("REPLICAOF", "127.0.0.1", 1)
        raised["READONLY when checked"] = failure_of_check(server.url())
        server.execute("REPLICAOF", "NO", "ONE")
        server.execute("CONFIG", "SET", "maxmemory", 1)
        no_memory = failure(server.url())
        server.execute("CONFIG", "SET", "maxmemory", 0)
        with server.client() as only:
            only.config_set("maxclients", 1)
            crowded = failure(server.url())
            only.config_set("maxclients", 100)
        server.execute("CONFIG", "SET", "requirepass", "right")
        raised["NOAUTH"] = failure(server.url())

    assert (type(no_memory), type(crowded)) == (errors.StoreUnavailable, errors.StoreUnavailable)
    assert "max number of clients reached" in str(crowded)
    assert {name: type(error) for name, error in raised.items()} == dict.fromkeys(raised, errors.StoreMisconfigured)
    assert not [error for error in raised.values() if "hush" in str(error)]
    assert "name the primary" in str(raised["READONLY"])


# SQLite.

_WRITE = """
import os, sys, tempfile
from onceward import errors, open_ledger
from onceward.store.check import check
from onceward.store.open import open_store
with tempfile.TemporaryDirectory() as folder:  # everything is imported while it can be
    with open_ledger(f"sqlite:///{folder}/warm.db") as warm:
        warm.blocking.run("key", lambda: None, effect="idempotent")
ledger, store = open_ledger(sys.argv[1]), open_store(sys.argv[1])
if os.geteuid() == 0:  # permissions do not hold for root
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
for act in (lambda: ledger.blocking.run("key", lambda: None, effect="idempotent"), lambda: check(store)):
    try:
        act()
    except errors.StoreUnavailable as error:
        print(error.code, error)
"""


LOCKED: dict[str, Callable[[Path], None]] = {
    "file": lambda file: file.chmod(0o444),
    "folder": lambda file: file.parent.chmod(0o555),
    "unreadable": lambda file: file.chmod(0o000),
}


@pytest.mark.parametrize("what", LOCKED)
def test_a_read_only_sqlite_file_is_a_misconfiguration(what: str) -> None:
    """Outside of the test's own folder, which only its owner can enter."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        file = folder / "ledger.db"
        with closing(open_store(f"sqlite:///{file}")) as store:
            store.commit([begin()])
        if os.geteuid() == 0:
            for path in (folder, *folder.iterdir()):
                os.chown(path, 65534, 65534)
        LOCKED[what](file)
        try:
            command = [sys.executable, "-c", _WRITE, f"sqlite:///{file}"]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
        finally:
            folder.chmod(0o755)

    raised = done.stdout.splitlines()
    assert [line.split(" ")[0] for line in raised] == ["store-misconfigured"] * 2
    assert all("give this user write access" in line for line in raised)
