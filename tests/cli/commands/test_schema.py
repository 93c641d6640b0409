"""`onceward schema`: one role creates the tables, and another one uses them without that right."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from tests.hub.in_process_hub import in_process_hub
from tests.servers.postgres import PostgresServer

from onceward import open_ledger
from onceward.cli import main
from onceward.hub.config.config import load
from onceward.hub.config.data_folder import opened
from onceward.store.check import check
from onceward.store.open import open_store

_OWNED = "SELECT count(*) FROM pg_class WHERE relowner = %s::regrole"
_SHAPE = """
SELECT table_schema, table_name, column_name, data_type, is_nullable, column_default FROM information_schema.columns
WHERE table_schema NOT IN ('pg_catalog', 'information_schema')
UNION ALL
SELECT schemaname, tablename, indexname, indexdef, '', '' FROM pg_indexes
WHERE schemaname NOT IN ('pg_catalog', 'information_schema')
UNION ALL
SELECT '', tgrelid::regclass::text, tgname, pg_get_triggerdef(oid), '', '' FROM pg_trigger WHERE NOT tgisinternal
UNION ALL
SELECT '', '', oid::regprocedure::text, pg_get_functiondef(oid), '', '' FROM pg_proc WHERE proname LIKE 'onceward%'
ORDER BY 1, 2, 3, 4
"""


@pytest.fixture
def url(postgres_server: PostgresServer) -> str:
    return postgres_server.create_database()


@pytest.fixture
def role(postgres_server: PostgresServer, url: str) -> Iterator[str]:
    """A role that may log in, and nothing else. Its name needs quotes."""
    name = f'it\'s 100% "{os.getpid()}"'
    quoted = '"' + name.replace('"', '""') + '"'
    with psycopg.connect(postgres_server.url(), autocommit=True) as owner:
        owner.execute(f"CREATE ROLE {quoted} LOGIN".encode())
        yield name
    with psycopg.connect(url, autocommit=True) as owner:
        owner.execute(f"DROP OWNED BY {quoted}".encode())
        owner.execute(f"DROP ROLE {quoted}".encode())


def as_role(url: str, role: str) -> str:
    return url.replace("postgres@", f"{role.replace('%', '%25').replace(' ', '%20')}@").replace('"', "%22")


def shape(url: str) -> list[tuple[object, ...]]:
    with psycopg.connect(url) as connection:
        return connection.execute(_SHAPE).fetchall()


def owned_by(url: str, role: str) -> int:
    with psycopg.connect(url) as connection:
        row = connection.execute(_OWNED, ['"' + role.replace('"', '""') + '"']).fetchone()
    assert row is not None
    return int(row[0])


def test_a_ledger_works_under_a_role_that_may_not_create_its_tables(url: str, role: str) -> None:
    code = main(["schema", "create", "--ledger", url, "--role", role])
    ran: list[str] = []
    with open_ledger(as_role(url, role)) as ledger:
        ledger.blocking.run("key", lambda: ran.append("ran"), effect="irreversible")
        ledger.blocking.run("key", lambda: ran.append("twice"), effect="irreversible")
        ledger.blocking.run("large", lambda: "x" * 200_000, effect="idempotent", retain_seconds=0)
        purged = ledger.blocking.purge()
    with closing(open_store(as_role(url, role))) as store:
        check(store)

    assert (code, ran, purged) == (0, ["ran"], 1)
    assert owned_by(url, role) == 0


def test_a_hub_works_under_a_role_that_may_not_create_its_tables(url: str, role: str, tmp_path: Path) -> None:
    codes = [main(["schema", "create", kind, url, "--role", role]) for kind in ("--database", "--ledger")]
    # As SQLAlchemy writes it; the ledger is in the same database.
    database = as_role(url, role).replace("postgresql://", "postgresql+psycopg://")
    config = load(None, {}, {("hub", "database"): database, ("hub", "data_dir"): str(tmp_path)})
    with opened(config):
        pass
    with in_process_hub(config) as hub:
        answers = [
            hub.post("/api/v1/topics", json={"title": "a topic"}, headers={"Idempotency-Key": "a"}),
            hub.post("/v1/tasks", json={"id": "t1", "title": "a task"}),
            hub.put("/test-mode", json={"enabled": True}),
            hub.get("/policies"),
            hub.get("/api/v1/events"),
            hub.get("/readyz"),
            hub.post("/chat", json={"message": "hello"}),
        ]
        topic = answers[0].json()["topic"]["id"]
        answers.append(hub.post(f"/api/v1/topics/{topic}/messages", json={"sender": "a", "content": "b"}))

    assert codes == [0, 0]
    assert [answer.status_code for answer in answers] == [201, 201, 200, 200, 200, 200, 200, 201]
    assert owned_by(url, role) == 0


@pytest.mark.parametrize("option", ["--ledger", "--database"])
def test_the_printed_script_creates_the_same_schema_as_the_create_command(
    option: str, postgres_server: PostgresServer, url: str, role: str, capsys: pytest.CaptureFixture[str]
) -> None:
    by_hand, created = url, postgres_server.create_database()
    assert main(["schema", "print", option, "postgresql://", "--role", role]) == 0
    script = capsys.readouterr().out
    with psycopg.connect(by_hand, autocommit=True) as owner:
        owner.execute(script.encode())
    assert main(["schema", "create", option, created]) == 0

    assert shape(by_hand) == shape(created)
    assert main(["schema", "create", option, by_hand, "--role", role]) == 0, "it finds everything there"


def test_without_a_role_the_grants_are_shown_and_not_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema", "print", "--ledger", "postgresql+psycopg://ada:hush@h/d"]) == 0

    printed = capsys.readouterr().out
    grants = [line for line in printed.splitlines() if "GRANT " in line]
    assert grants
    assert all(line.startswith("-- ") for line in grants)
    assert "hush" not in printed


@pytest.mark.parametrize(
    ("option", "url_text"),
    [
        ("--ledger", "redis://h"),
        ("--ledger", "valkey://h"),
        ("--ledger", "sqlite:///x.db"),
        ("--ledger", "memory:"),
        ("--database", "sqlite:///x.db"),
    ],
)
@pytest.mark.parametrize("command", ["print", "create"])
def test_other_stores_need_no_schema(
    command: str,
    option: str,
    url_text: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["schema", command, option, url_text]) == 0

    assert "needs no schema" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["print"],
        ["print", "--ledger", "postgresql://", "--database", "postgresql://"],
        ["print", "--database", "redis://h"],
        ["print", "--ledger", "mysql://h"],
        ["print", "--ledger", "postgresql://", "--role", "x" * 64],
        ["create", "--ledger", "postgresql://", "--role", ""],
    ],
)
def test_invalid_arguments_are_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema", *arguments]) in {1, 2}
    assert capsys.readouterr().err.startswith("onceward: ")
