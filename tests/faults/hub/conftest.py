"""Hubs of two worker processes that the tests share, one on each database; tests that harm a hub start their own."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.backends import Servers
from tests.faults.hub_database import connected_to
from tests.hub.hub_process import SERVE, RunningHub, running_hub
from tests.hub.raw_client import Caller, connections_by_worker
from tests.waiting import SECONDS_MAX, until

from onceward.hub.db.engine import Database
from onceward.hub.security import tokens


@dataclass(frozen=True, slots=True)
class Site:
    """A running hub that requires tokens, access to its database, and two principals."""

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
        """Create a token; return its id and its text."""
        with self.database.write() as tx:
            made, text = tokens.create(tx, name, scopes)
        return made.token_id, text

    def caller(self, name: str, *scopes: str) -> Caller:
        return Caller(self.port, self.new_token(name, *scopes)[1])


class Sites:
    """Sites by database, each started when the first test asks for it."""

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
        hub = self._running.enter_context(running_hub(data_dir=data_dir, args=args, command=SERVE))
        database = self._running.enter_context(connected_to(url))
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


class Killable(NamedTuple):
    """A hub of two workers, and the file that orders the point at which they stop."""

    hub: RunningHub
    orders: Path
    database: Database

    def kill_at(self, point: str, requests: list[tuple[str, object, str]]) -> int:
        """Send these requests to one worker, and kill it when it reaches the point. Return its process id."""
        connections = connections_by_worker(self.hub, len(requests))
        worker = min(connections)
        self.orders.write_text(point, "utf-8")
        with ExitStack() as stack, ThreadPoolExecutor(len(requests)) as threads:
            for some in connections.values():
                for connection in some:
                    stack.enter_context(closing(connection))
            callers = [Caller(self.hub.port, None, connection) for connection in connections[worker]]
            sent = [
                threads.submit(caller.post, path, content, key=key)
                for caller, (path, content, key) in zip(callers, requests, strict=True)
            ]
            # One that is settling holds up the others; those that have committed do not.
            expected = len(requests) if point == "committed" else 1
            until(lambda: self.standing(worker, point) >= expected, f"nobody came to {point}")
            self.orders.unlink()
            os.kill(worker, signal.SIGKILL)
            for one in sent:
                with pytest.raises(OSError, match=r"."):
                    one.result(SECONDS_MAX)
        return worker

    def standing(self, worker: int, point: str) -> int:
        return self.hub.log_lines().count(f"app: {worker} is at {point}")


@pytest.fixture(params=["sqlite", "postgresql"])
def killable(request: pytest.FixtureRequest, servers: Servers, tmp_path: Path) -> Iterator[Killable]:
    data_dir, orders = tmp_path / "data", tmp_path / "orders"
    url, args = f"sqlite:///{data_dir}/hub.db", ["--workers", "2"]
    if request.param == "postgresql":
        url = servers.postgres.create_database()
        args += ["--database", url]
    command = (sys.executable, "-m", "tests.faults.hub.pausing_hub", str(orders))
    with running_hub(data_dir=data_dir, args=args, command=command) as hub, connected_to(url) as database:
        yield Killable(hub, orders, database)
