"""A failing store: the cause is logged once; 503 if a retry helps, 500 if it does not."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psycopg
import pytest
from tests.hub.in_process_hub import Client, in_process_hub
from tests.hub.tasks_hub import UPLOADS, form
from tests.servers.database_pool import DatabasePool
from tests.servers.postgres import PostgresServer
from tests.servers.s3 import S3Server

from onceward.cli import main
from onceward.hub.config.config import Config, HubSettings
from onceward.store import failure_log

TOPICS = "/api/v1/topics"


@pytest.fixture(autouse=True)
def _fresh_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the causes that earlier tests logged: each cause is logged once."""
    log = failure_log.FailureLog()
    for name in (
        "onceward.http.problem",
        "onceward.http.keyed.admission",
        "onceward.hub.web.problems",
        "onceward.hub.routes.pages",
    ):
        monkeypatch.setattr(sys.modules[name], "report", log.report)


@contextmanager
def hub_with(tmp_path: Path, sqlite_template: Path, *, database: str = "", blobs: str = "") -> Iterator[Client]:
    (tmp_path / "hub.db").write_bytes(sqlite_template.read_bytes())
    ledger = f"sqlite:///{tmp_path}/keys.db"
    settings = HubSettings(data_dir=str(tmp_path), database=database, ledger=ledger, blobs=blobs)
    with in_process_hub(Config(settings)) as client:
        yield client


def causes(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.getMessage().startswith("store_")]


def upload(hub: Client) -> httpx.Response:
    hub.post("/v1/tasks", json={"id": "t1", "title": "A task"})
    body, headers = form([("kind", "artifact"), ("content", b"bytes", "a.bin")])
    return hub.post(UPLOADS, content=body, headers=headers)


def assert_misconfigured(answer: httpx.Response, *secrets: str) -> None:
    assert (answer.status_code, answer.json()["code"]) == (500, "internal")
    assert "misconfigured" in answer.json()["detail"]
    assert "retry-after" not in answer.headers
    assert not [secret for secret in secrets if secret in answer.text]


def test_a_missing_bucket_is_not_retryable_and_named_once_in_the_log(
    s3_server: S3Server, tmp_path: Path, sqlite_template: Path, caplog: pytest.LogCaptureFixture
) -> None:
    blobs = s3_server.fresh_url().replace("//blobs/", "//nowhere/")
    with hub_with(tmp_path, sqlite_template, blobs=blobs) as hub:
        answers = [upload(hub) for _ in range(3)]

    for answer in answers:
        assert_misconfigured(answer, "nowhere", "NoSuchBucket")
    (line,) = causes(caplog)
    assert line.startswith("store_misconfigured cause=")
    assert "NoSuchBucket" in line
    assert "'nowhere'" in line


def test_a_wrong_s3_key_is_not_retryable_and_not_shown(
    s3_server: S3Server,
    tmp_path: Path,
    sqlite_template: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush-hush")
    with hub_with(tmp_path, sqlite_template, blobs=s3_server.fresh_url()) as hub:
        answer, ready = upload(hub), hub.get("/readyz")

    assert_misconfigured(answer, "hush", s3_server.access_key_id)
    assert (ready.status_code, ready.json()["checks"]["blobs"]) == (503, "store-misconfigured")
    assert causes(caplog)
    assert all("SignatureDoesNotMatch" in line or "access denied" in line for line in causes(caplog))
    assert "hush" not in caplog.text


def test_a_blob_server_that_is_down_is_retryable(
    s3_server: S3Server, tmp_path: Path, sqlite_template: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with hub_with(tmp_path, sqlite_template, blobs=s3_server.fresh_url("http://127.0.0.1:9")) as hub:
        answer = upload(hub)

    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    assert [line.partition(" ")[0] for line in causes(caplog)] == ["store_unavailable"]


@pytest.mark.parametrize("option", ["--database", "--ledger"])
def test_a_hub_with_a_wrong_url_does_not_start_and_says_why(
    option: str, postgres_server: PostgresServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = postgres_server.url("no_such_database").replace("postgres@", "postgres:hush@")
    code = main(["serve", "--port", "0", "--data-dir", str(tmp_path / "data"), option, wrong])

    printed = capsys.readouterr()
    assert (code, printed.out) == (1, "")
    assert 'database "no_such_database" does not exist; create the database' in printed.err
    assert "hush" not in printed.err


@pytest.fixture
def as_role(database_pool: DatabasePool) -> Iterator[tuple[str, psycopg.Connection, str]]:
    """A hub's database by the URL of a role without privileges, its owner's connection, and the role's name."""
    role = f"hub_{os.getpid()}"
    with database_pool.borrow() as url, psycopg.connect(url, autocommit=True) as owner:
        owner.execute(f"CREATE ROLE {role} LOGIN")
        yield url.replace("postgres@", f"{role}@"), owner, role
        owner.execute(f"DROP OWNED BY {role}")
        owner.execute(f"DROP ROLE {role}")


def test_too_many_database_clients_are_named_in_the_log(
    as_role: tuple[str, psycopg.Connection, str],
    tmp_path: Path,
    sqlite_template: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    url, owner, role = as_role
    owner.execute(f"ALTER ROLE {role} CONNECTION LIMIT 0")
    with hub_with(tmp_path, sqlite_template, database=url) as hub:
        answers = [hub.get(TOPICS) for _ in range(3)]

    assert [(one.status_code, one.headers["retry-after"]) for one in answers] == [(503, "5")] * 3
    (line,) = causes(caplog)
    assert "StoreOverloaded" in line
    assert "too many connections for role" in line


def test_a_missing_privilege_on_the_database_is_not_retryable(
    as_role: tuple[str, psycopg.Connection, str],
    tmp_path: Path,
    sqlite_template: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    url, owner, role = as_role
    owner.execute(f"GRANT SELECT ON tokens TO {role}")
    with hub_with(tmp_path, sqlite_template, database=url) as hub:
        answer = hub.get(TOPICS)

    assert_misconfigured(answer, "permission denied")
    (line,) = causes(caplog)
    assert "permission denied for table topics" in line
    assert "onceward schema print --database URL" in line
