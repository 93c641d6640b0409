"""The migration that creates the ingest schemas: on old databases, and with a restricted role."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest
from alembic import command
from alembic.config import Config
from psycopg import sql
from sqlalchemy import text
from tests.servers.postgres import PostgresServer

from onceward.errors import WriteRefused
from onceward.hub.db import migrate as migrating
from onceward.hub.db.engine import Database, open_database
from onceward.hub.db.migrate import migrate
from onceward.hub.ingest.entries.policy import SEEDS, list_policies
from onceward.hub.ingest.entries.schema import PKM, PKM_TEST, active_schema


def migrate_to(database: Database, step: str) -> None:
    config = Config()
    config.set_main_option("script_location", str(migrating._STEPS))
    config.set_main_option("path_separator", "os")
    with database.write() as tx:
        config.attributes["connection"] = tx
        command.upgrade(config, step)


def check(database: Database) -> None:
    with database.read() as tx:
        assert tuple(list_policies(tx, PKM)) == tuple(list_policies(tx, PKM_TEST)) == SEEDS
        assert active_schema(tx) is PKM


def test_an_old_database_gets_the_schemas_and_keeps_its_rows(empty_url: str) -> None:
    with closing(open_database(empty_url)) as database:
        migrate_to(database, "0002")
        with database.write() as tx:
            tx.execute(text("INSERT INTO topics (id, title, created_at) VALUES ('t', 'T', '2026')"))

        assert migrate(database) is True

        check(database)
        with database.read() as tx:
            assert tx.execute(text("SELECT id FROM topics")).scalars().all() == ["t"]


@pytest.fixture
def owned(postgres_server: PostgresServer) -> Iterator[tuple[str, str]]:
    """A database whose tables a plain role may make, in the public schema alone; the URLs of its owner and the role."""
    url = postgres_server.create_database()
    name = url.rpartition("/")[2]
    role = sql.Identifier(f"plain_{name}")
    with psycopg.connect(url, autocommit=True) as owner:
        owner.execute(sql.SQL("CREATE ROLE {} LOGIN").format(role))
        owner.execute(sql.SQL("GRANT CREATE, USAGE ON SCHEMA public TO {}").format(role))
        yield url, url.replace("postgres@", f"plain_{name}@")
        owner.execute(sql.SQL("DROP OWNED BY {}").format(role))
        owner.execute(sql.SQL("DROP ROLE {}").format(role))


def refusal(url: str) -> str:
    with closing(open_database(url)) as database:
        with pytest.raises(WriteRefused) as refused:
            migrate(database)
        with database.read() as tx:
            assert migrating._version(tx) == "", "all or nothing"
    return str(refused.value)


def test_a_role_that_may_not_create_schemas_is_told_what_to_ask_for(owned: tuple[str, str]) -> None:
    owner_url, url = owned
    name = url.rpartition("/")[2]

    assert "GRANT CREATE ON DATABASE" in refusal(url)

    with psycopg.connect(owner_url, autocommit=True) as owner:
        # The schemas alone are not enough: they exist, but belong to another role.
        owner.execute("CREATE SCHEMA pkm")
        owner.execute("CREATE SCHEMA pkm_test")
        assert "GRANT CREATE, USAGE ON SCHEMA" in refusal(url)
        owner.execute(
            sql.SQL("GRANT CREATE, USAGE ON SCHEMA pkm, pkm_test TO {}").format(sql.Identifier(f"plain_{name}"))
        )
    with closing(open_database(url)) as database:
        assert migrate(database) is True
        check(database)


def test_foreign_tables_are_not_touched(postgres_server: PostgresServer) -> None:
    url = postgres_server.create_database()
    with psycopg.connect(url, autocommit=True) as owner:
        owner.execute("CREATE SCHEMA pkm_test")
        owner.execute("CREATE TABLE pkm_test.entries (mine text)")

    assert "'pkm_test' has a table 'entries' that is not Onceward's" in refusal(url)
