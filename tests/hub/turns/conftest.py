"""A database with a ledger beside it, on each kind in turn."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from tests.backends import Servers

from onceward.ledger import Ledger
from onceward.ledger.open import open_ledger

# The events of other tests stay: the event log refuses deletes.
_EMPTY = """
DELETE FROM turns;
DELETE FROM artifacts;
DO $$ BEGIN
    IF to_regclass('platform_idempotency_keys') IS NOT NULL THEN
        DELETE FROM platform_idempotency_chunks;
        DELETE FROM platform_idempotency_keys;
    END IF;
END $$
"""


@pytest.fixture(scope="session")
def postgres_of_turns(servers: Servers, postgres_template: str) -> Iterator[psycopg.Connection]:
    """One database for all of these tests: creating one takes longer than most of them."""
    url = servers.postgres.create_database(postgres_template)
    with psycopg.connect(url, autocommit=True) as connection:
        yield connection


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a database with the hub's tables and without turns, on each kind in turn."""
    if request.param == "sqlite":
        shutil.copy(request.getfixturevalue("sqlite_template"), tmp_path / "hub.db")
        return f"sqlite:///{tmp_path}/hub.db"
    connection: psycopg.Connection = request.getfixturevalue("postgres_of_turns")
    connection.execute(_EMPTY)
    servers: Servers = request.getfixturevalue("servers")
    return servers.postgres.url(connection.info.dbname)


@pytest.fixture
def durable_url(database_url: str, tmp_path: Path) -> str:
    """A ledger of the same kind as the database."""
    return database_url if database_url.startswith("postgresql") else f"sqlite:///{tmp_path}/ledger.db"


@pytest.fixture(params=["durable", "memory"])
def ledger_url(request: pytest.FixtureRequest) -> str:
    """A ledger of the same kind as the database, and one in memory."""
    url: str = "memory:" if request.param == "memory" else request.getfixturevalue("durable_url")
    return url


@pytest.fixture
def ledger(ledger_url: str) -> Iterator[Ledger]:
    with open_ledger(ledger_url) as ledger:
        yield ledger
