"""Hubs of two worker processes that the tests share, one on each database; tests that harm a hub start their own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.backends import Servers
from tests.hub.fire.calls import Caller
from tests.hub.fire.rows import looking_into
from tests.hub.process import RunningHub, running_hub

from onceward.db.engine import Database
from onceward.hub import tokens


@dataclass(frozen=True, slots=True)
class Site:
    """A running hub that needs tokens, its database seen from outside, and two who may use it."""

    hub: RunningHub
    database_url: str
    database: Database
    token: str
    ada: Caller
    bob: Caller

    @property
    def port(self) -> int:
        return self.hub.port

    def new_token(self, name: str, *scopes: str) -> tuple[str, str]:
        """Its id and its text."""
        with self.database.write() as tx:
            made, text = tokens.create(tx, name, scopes)
        return made.token_id, text

    def caller(self, name: str, *scopes: str) -> Caller:
        return Caller(self.port, self.new_token(name, *scopes)[1])


class Sites:
    """Each is started when the first test asks for it."""

    def __init__(self, servers: Servers, folder: Path) -> None:
        self._servers = servers
        self._folder = folder
        self._running = ExitStack()
        self._sites: dict[str, Site] = {}

    def __getitem__(self, name: str) -> Site:
        if name not in self._sites:
            self._sites[name] = self._start(name)
        return self._sites[name]

    def _start(self, name: str) -> Site:
        data_dir = self._folder / name
        url, args = f"sqlite:///{data_dir}/hub.db", ["--workers", "2"]
        if name == "postgresql":
            url = self._servers.postgres.create_database()
            args += ["--database", url, "--ledger", self._servers.redis.fresh_url()]
        hub = self._running.enter_context(running_hub(data_dir=data_dir, args=args))
        database = self._running.enter_context(looking_into(url))
        with database.write() as tx:
            _, ada = tokens.create(tx, "ada", ["read", "write"])
            _, bob = tokens.create(tx, "bob", ["read", "write"])
        return Site(hub, url, database, ada, Caller(hub.port, ada), Caller(hub.port, bob))

    def close(self) -> None:
        self._running.close()


@pytest.fixture(scope="session")
def sites(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sites]:
    sites = Sites(servers, tmp_path_factory.mktemp("sites"))
    yield sites
    sites.close()


@pytest.fixture(params=["sqlite", "postgresql"])
def site(request: pytest.FixtureRequest, sites: Sites) -> Site:
    """Each of the two in turn: SQLite alone, and PostgreSQL with the ledger in Redis."""
    return sites[request.param]
