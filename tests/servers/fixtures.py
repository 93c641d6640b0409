"""Fixtures of the servers, and of databases with the hub's tables. A plugin, so that the library is tested without them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.backends import Servers
from tests.servers.database_pool import DatabasePool
from tests.servers.postgres import PostgresServer
from tests.servers.redis import RedisCluster, RedisServer
from tests.servers.s3 import S3Server

from onceward.hub.db.engine import Database, open_database
from onceward.hub.db.migrate import migrate


@pytest.fixture(scope="session")
def postgres_server(servers: Servers) -> PostgresServer:
    """Shared with other tests: stop or freeze one of your own instead."""
    return servers.postgres


@pytest.fixture(scope="session")
def redis_server(servers: Servers) -> RedisServer:
    """Shared with other tests: stop or freeze one of your own instead."""
    return servers.redis


@pytest.fixture(scope="session")
def redis_cluster(servers: Servers) -> RedisCluster:
    """Shared with other tests: stop or freeze one of your own instead."""
    return servers.redis_cluster


@pytest.fixture
def s3_server(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """Shared with other tests: stop or freeze one of your own instead. Its credentials are in the environment."""
    for name, value in servers.s3.environ.items():
        monkeypatch.setenv(name, value)
    return servers.s3


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with the hub's tables: copying it costs less than making them."""
    file = tmp_path_factory.mktemp("template") / "hub.db"
    with closing(open_database(f"sqlite:///{file}")) as database:
        migrate(database)
    return file


@pytest.fixture(scope="session")
def postgres_template(servers: Servers) -> str:
    """The name of a database with the hub's tables, to make others from."""
    url = servers.postgres.create_database()
    with closing(open_database(url)) as database:
        migrate(database)
    return url.rpartition("/")[2]


@pytest.fixture(scope="session")
def database_pool(servers: Servers, postgres_template: str) -> DatabasePool:
    """Lends databases with the hub's tables."""
    return DatabasePool(servers.postgres, postgres_template)


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a database with the hub's tables, on each kind in turn."""
    if request.param == "sqlite":
        shutil.copy(request.getfixturevalue("sqlite_template"), tmp_path / "hub.db")
        yield f"sqlite:///{tmp_path}/hub.db"
    else:
        database_pool: DatabasePool = request.getfixturevalue("database_pool")
        with database_pool.borrow() as url:
            yield url


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    """A database of the hub with its tables, on each kind in turn."""
    with closing(open_database(database_url)) as database:
        migrate(database)
        yield database
