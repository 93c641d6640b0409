"""Databases of the hub are made once for all tests of the feed, and copied or emptied for each: making one costs more than
most of them.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import text
from tests.backends import Servers

from onceward.hub.db.engine import Database, open_database
from onceward.hub.db.migrate import migrate


@pytest.fixture(scope="session")
def feed_database_url(servers: Servers) -> str:
    return servers.postgres.create_database()


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        shutil.copy(request.getfixturevalue("sqlite_template"), tmp_path / "hub.db")
        return f"sqlite:///{tmp_path}/hub.db"
    url: str = request.getfixturevalue("feed_database_url")
    return url


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    with closing(open_database(database_url)) as database:
        migrate(database)
        if not database.is_sqlite:
            with database.write() as tx:
                # The triggers refuse it to all others.
                tx.execute(text("SET LOCAL session_replication_role = replica"))
                tx.execute(text("TRUNCATE events RESTART IDENTITY"))
                tx.execute(text("UPDATE event_log SET oldest_event_id = 1"))
        yield database
