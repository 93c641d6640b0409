"""`check_hub_data`: every deliberate fault is found and named, a healthy hub has none, and nothing is changed."""

from __future__ import annotations

import contextlib
import hashlib
import re
import resource
import socket
import sqlite3
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest
from tests.backends import Servers
from tests.servers.redis import RedisServer
from tests.waiting import until

from onceward.core.claim import Claim
from onceward.hub.blobs.open import open_blobs
from onceward.hub.config import data_folder
from onceward.hub.config.config import Config, HubSettings, IdempotencySettings, TurnsSettings
from onceward.hub.db.tables import SCHEMAS
from onceward.hub.doctor import server
from onceward.hub.doctor.check_result import CheckResult, Level
from onceward.hub.doctor.checkup import check_hub_data
from onceward.hub.ingest.entries.schema import set_test_mode
from onceward.ledger.ledger import Ledger


@pytest.fixture(autouse=True)
def on_a_disk(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """The temporary folders of the suite may be in memory, which is itself a finding."""
    if "memory" not in request.node.name:
        monkeypatch.setattr(server, "_MEMORY_FILE_SYSTEMS", frozenset())


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """A hub on SQLite with nothing wrong."""
    config = Config(HubSettings(data_dir=str(tmp_path / "data")))
    with data_folder.opened(config), data_folder.ledger(config) as ledger:
        ledger.blocking.run("k", lambda: "done", effect="irreversible")
    open_blobs(config.blobs_url)
    return config


def findings(config: Config, clock: Callable[[], float] = time.time) -> dict[str, CheckResult]:
    return {finding.check: finding for finding in check_hub_data(config, clock)}


def not_ok(found: dict[str, CheckResult]) -> dict[str, Level]:
    return {check: finding.level for check, finding in found.items() if finding.level is not Level.OK}


def contents(folder: Path) -> dict[str, str]:
    files = [file for file in folder.rglob("*") if file.is_file() and not file.name.endswith(("-shm", "-wal"))]
    return {str(file): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def test_a_healthy_hub_has_no_findings_and_stays_as_it_is(config: Config) -> None:
    before = contents(config.data_folder)

    found = findings(config)

    assert not_ok(found) == {}
    assert {
        "database",
        "schema",
        "durability",
        "ledger",
        "ledger-durability",
        "doubts",
        "lapsed",
        "blobs",
        "tokens",
    } <= set(found)
    assert contents(config.data_folder) == before


def _execute(file: Path, statement: str) -> None:
    with contextlib.closing(sqlite3.connect(file)) as database, database:
        database.execute(statement)


def _with_claim(config: Config, act: Callable[[Ledger, Claim], object], lease_seconds: float = 30) -> None:
    with data_folder.ledger(config) as ledger:
        claim = ledger.blocking.begin("call", "charge:1", repeatable=False, lease_seconds=lease_seconds)
        assert isinstance(claim, Claim)
        act(ledger, claim)


def _in_test_mode(config: Config) -> None:
    with data_folder.opened(config) as database, database.write() as tx:
        set_test_mode(tx, True)


FAULTS: dict[str, tuple[Callable[[Config], object], dict[str, Level], str]] = {
    "old schema": (
        lambda config: _execute(config.data_folder / "hub.db", "UPDATE alembic_version SET version_num = '0007'"),
        {"schema": Level.WARNING},
        "at 0007, and this version needs",
    ),
    "newer schema": (
        lambda config: _execute(config.data_folder / "hub.db", "UPDATE alembic_version SET version_num = '9000'"),
        {"schema": Level.PROBLEM},
        "upgrade Onceward",
    ),
    "old ledger": (
        lambda config: _execute(
            config.data_folder / "ledger.db", "UPDATE platform_idempotency_meta SET upgraded_to = 1"
        ),
        {"ledger": Level.WARNING},
        "has schema 1",
    ),
    "newer ledger": (
        lambda config: _execute(
            config.data_folder / "ledger.db",
            "UPDATE platform_idempotency_meta SET readable_from = 9, schema_version = 9",
        ),
        {"ledger": Level.PROBLEM},
        "supports schema 9",
    ),
    "folder readable by others": (
        lambda config: config.data_folder.chmod(0o755),
        {"data-folder": Level.WARNING},
        "chmod -R go=",
    ),
    "a doubt": (
        lambda config: _with_claim(config, lambda ledger, claim: ledger.blocking.doubt(claim)),
        {"doubts": Level.WARNING},
        "1 claim is in doubt, the oldest since 0.0 hours",
    ),
    "a claim without a holder": (
        lambda config: _with_claim(config, lambda ledger, claim: ledger.blocking.lapse(claim)),
        {"lapsed": Level.WARNING},
        "have lost their holder, and are not in doubt yet: 1",
    ),
    "test mode": (_in_test_mode, {"test-mode": Level.WARNING}, "ingest test-mode off"),
    "no database": (
        lambda config: (config.data_folder / "hub.db").unlink(),
        {"database": Level.PROBLEM},
        "does not exist",
    ),
    "no blobs": (
        lambda config: (config.data_folder / "blobs").rename(config.data_folder / "elsewhere"),
        {"blobs": Level.WARNING},
        "does not exist",
    ),
    "a blob folder without content": (
        lambda config: (config.data_folder / "blobs" / "sha256").rmdir(),
        {"blobs": Level.WARNING},
        "sha256' does not exist",
    ),
    "a file instead of blobs": (
        lambda config: _replace_tmp(config.data_folder / "blobs"),
        {"blobs": Level.PROBLEM},
        "blob folder",
    ),
    "a damaged database": (
        lambda config: (config.data_folder / "hub.db").write_bytes(b"not a database" * 100),
        {"database": Level.PROBLEM},
        "not a database",
    ),
}


def _replace_tmp(blobs: Path) -> None:
    (blobs / "tmp").rmdir()
    (blobs / "tmp").write_bytes(b"")


@pytest.mark.parametrize("fault", FAULTS)
def test_a_deliberate_fault_is_found(config: Config, fault: str) -> None:
    make, levels, words = FAULTS[fault]
    make(config)

    found = findings(config)

    assert not_ok(found) == levels
    (check,) = levels
    assert words in f"{found[check].detail} {found[check].advice}"
    assert found[check].advice


def test_an_old_doubt_is_a_problem(config: Config) -> None:
    _with_claim(config, lambda ledger, claim: ledger.blocking.doubt(claim))
    _execute(
        config.data_folder / "ledger.db",
        "UPDATE platform_idempotency_keys SET claimed_at = '2020-01-01T00:00:00.000000Z' WHERE status = 'in_doubt'",
    )

    assert not_ok(findings(config)) == {"doubts": Level.PROBLEM}


@pytest.mark.parametrize(
    ("hours", "level"), [(0.02, Level.PROBLEM), (1.0, Level.WARNING), (24.0, Level.OK), (24.0 * 14, Level.OK)]
)
def test_the_retention_is_compared_with_how_long_callers_retry(config: Config, hours: float, level: Level) -> None:
    found = findings(replace(config, idempotency=IdempotencySettings(default_ttl_hours=hours)))["retention"]

    assert found.level is level
    covered = {row["caller"]: row["is_covered"] for row in found.data["callers"]}
    assert covered["Stripe webhooks"] is (hours >= 72)
    assert covered["Amazon SQS, all deliveries"] is (hours >= 24 * 14)
    assert all(row["reason"] for row in found.data["callers"])


def test_a_short_retention_of_chat_keys_is_a_problem(config: Config) -> None:
    assert not_ok(findings(replace(config, turns=TurnsSettings(api_ttl_seconds=60)))) == {
        "chat-retention": Level.PROBLEM
    }


def test_a_public_address_without_tokens_is_a_problem(config: Config) -> None:
    assert not_ok(findings(replace(config, hub=replace(config.hub, host="0.0.0.0")))) == {"tokens": Level.PROBLEM}  # noqa: S104


def test_too_few_file_descriptors_are_a_warning(config: Config) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, limits[1]))
    try:
        found = findings(config)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)

    assert not_ok(found) == {"file-descriptors": Level.WARNING}


def test_data_in_memory_is_a_warning() -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:  # memory is what is tested
        config = Config(HubSettings(data_dir=f"{folder}/data", ledger="memory:"))
        with data_folder.opened(config):
            pass
        open_blobs(config.blobs_url)

        found = not_ok(findings(config))

    assert found == {"durability": Level.WARNING, "ledger": Level.WARNING}


def test_a_dead_bucket_is_a_problem(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "k")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"s3://bucket/hub?endpoint=http://127.0.0.1:{unused.getsockname()[1]}&region=us-east-1"

        found = findings(replace(config, hub=replace(config.hub, blobs=url)))

    assert not_ok(found) == {"blobs": Level.PROBLEM}


def test_a_probe_leaves_nothing_in_a_bucket(config: Config, servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in servers.s3.environ.items():
        monkeypatch.setenv(name, value)
    url = servers.s3.fresh_url()

    found = findings(replace(config, hub=replace(config.hub, blobs=url)))

    assert not_ok(found) == {}
    assert list(open_blobs(url).keys()) == []


def test_a_redis_that_may_lose_writes_is_a_problem(config: Config) -> None:
    with RedisServer(durable=False) as server:
        url = server.fresh_url()
        refused = findings(replace(config, hub=replace(config.hub, ledger=url)))
        accepted = findings(
            replace(config, hub=replace(config.hub, ledger=f"{url}{'&' if '?' in url else '?'}volatile=ok"))
        )
        server_is_gone = replace(config, hub=replace(config.hub, ledger=url))

    assert not_ok(refused) == {"ledger-durability": Level.PROBLEM}
    assert not_ok(accepted) == {"ledger-durability": Level.WARNING}
    assert not_ok(findings(server_is_gone)) == {"ledger": Level.PROBLEM}


def test_a_redis_that_syncs_once_a_second_is_a_warning(config: Config) -> None:
    with RedisServer() as server:
        url = server.fresh_url()
        config = replace(config, hub=replace(config.hub, ledger=url))
        synced = findings(config)
        server.execute("CONFIG SET", "appendfsync", "everysec")
        unsynced = findings(config)

    assert not_ok(synced) == {}
    assert not_ok(unsynced) == {"ledger-durability": Level.WARNING}
    assert "appendfsync everysec" in unsynced["ledger-durability"].detail


def test_the_server_of_the_ledger_is_named_with_its_version(config: Config, servers: Servers) -> None:
    for one, name in ((servers.redis, r"(Redis|Valkey) \d+\."), (servers.valkey, r"Valkey \d+\.")):
        found = findings(replace(config, hub=replace(config.hub, ledger=one.fresh_url())))

        assert not_ok(found) == {}
        assert re.match(name, found["ledger-durability"].detail)


class TestPostgres:
    @pytest.fixture
    def config(self, config: Config, servers: Servers) -> Config:
        url = servers.postgres.create_database()
        config = replace(config, hub=replace(config.hub, database=url, ledger=url))
        with data_folder.opened(config), data_folder.ledger(config) as ledger:
            ledger.blocking.run("k", lambda: "done", effect="irreversible")
        return config

    def test_a_server_that_may_lose_rows_is_a_problem(self, config: Config) -> None:
        def is_off() -> bool:
            with psycopg.connect(config.database_url) as session:
                return session.execute("SHOW full_page_writes").fetchone() == ("off",)

        assert not_ok(findings(config)) == {}
        with psycopg.connect(config.database_url, autocommit=True) as owner:
            owner.execute("ALTER SYSTEM SET full_page_writes = off")
            owner.execute("SELECT pg_reload_conf()")
            try:
                until(is_off)
                found = findings(config)
            finally:
                owner.execute("ALTER SYSTEM RESET full_page_writes")
                owner.execute("SELECT pg_reload_conf()")
                until(lambda: not is_off())

        assert not_ok(found) == {"durability": Level.PROBLEM, "ledger-durability": Level.PROBLEM}
        assert "full_page_writes is off" in found["durability"].detail

    @pytest.mark.parametrize(
        ("ahead", "level"), [(10.0, Level.WARNING), (-10.0, Level.WARNING), (-100.0, Level.PROBLEM), (0.5, None)]
    )
    def test_clock_skew_is_found(self, config: Config, ahead: float, level: Level | None) -> None:
        found = not_ok(findings(config, lambda: time.time() - ahead))

        assert (found.get("database-clock"), found.get("ledger-clock")) == (level, level)

    def test_more_connections_than_the_server_allows_are_a_warning(self, config: Config) -> None:
        enough = findings(replace(config, hub=replace(config.hub, workers=4)))["connections"]
        many = findings(replace(config, hub=replace(config.hub, workers=5)))
        narrow = findings(replace(config, hub=replace(config.hub, workers=5, database_connections=9)))["connections"]

        assert (enough.level, enough.data) == (Level.OK, {"needed": 80, "allowed": 97})
        assert not_ok(many) == {"connections": Level.WARNING}
        assert many["connections"].data == {"needed": 100, "allowed": 97}
        assert "5 workers with 20 connections each" in many["connections"].detail
        assert (narrow.level, narrow.data["needed"]) == (Level.OK, 50)

    def test_a_limit_of_the_database_counts_too(self, config: Config) -> None:
        name = urlsplit(config.database_url).path[1:]
        with psycopg.connect(config.database_url, autocommit=True) as owner:
            owner.execute(f"ALTER DATABASE {name} CONNECTION LIMIT 19".encode())

        assert findings(config)["connections"].data == {"needed": 20, "allowed": 19}

    def test_a_pooler_is_named_and_must_accept_all_clients(self, config: Config, servers: Servers) -> None:
        url = servers.pgbouncer.url(config.database_url)

        found = findings(replace(config, hub=replace(config.hub, database=url, ledger=url, workers=5)))

        assert not_ok(found) == {}
        assert (
            "a connection pooler is in front of the server; it must accept 100 clients" in found["connections"].detail
        )

    def test_a_role_without_privileges_is_a_problem(self, config: Config, servers: Servers) -> None:
        database = urlsplit(config.database_url).path[1:]
        role = f"weak_{database}"
        with psycopg.connect(config.database_url, autocommit=True) as owner:
            owner.execute(f"CREATE ROLE {role} LOGIN".encode())
            schemas = ", ".join(("public", *SCHEMAS))
            owner.execute(f"GRANT USAGE ON SCHEMA {schemas} TO {role}".encode())
            owner.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA {schemas} TO {role}".encode())
            try:
                parts = urlsplit(servers.postgres.url(database))
                url = parts._replace(netloc=f"{role}@{parts.netloc.rpartition('@')[2]}").geturl()
                found = findings(replace(config, hub=replace(config.hub, database=url, ledger=url)))
            finally:
                owner.execute(f"DROP OWNED BY {role}".encode())
                owner.execute(f"DROP ROLE {role}".encode())

        assert not_ok(found).keys() >= {"privileges", "ledger-privileges"}
        assert f"the role {role} lacks " in found["privileges"].detail
        assert "onceward schema create --database postgresql://OWNER@" in found["privileges"].advice
        assert f"--role {role}" in found["ledger-privileges"].advice
        assert "INSERT ON platform_idempotency_keys" in found["ledger-privileges"].detail
