from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.backends import BACKENDS, Backend, Servers
from tests.faults.fork_server import ForkServer
from tests.faults.worker_process import Caller, Effects, WorkerProcess


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def backend(request: pytest.FixtureRequest) -> Backend:
    """The stores that several processes can share."""
    return BACKENDS[request.param]


@pytest.fixture
def new_url(backend: Backend, servers: Servers, tmp_path: Path) -> Callable[[], str]:
    """Returns URLs of stores that were never opened: not even a table exists."""

    def new() -> str:
        if backend.name == "postgres":
            return servers.postgres.create_database()
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        return backend.url(servers, folder)

    return new


@pytest.fixture
def effects(tmp_path: Path) -> Effects:
    return Effects(tmp_path / "effects")


@pytest.fixture(scope="session")
def fork_server() -> Iterator[ForkServer]:
    with closing(ForkServer()) as fork_server:
        yield fork_server


@pytest.fixture
def start_worker(fork_server: ForkServer, effects: Effects) -> Iterator[Callable[..., WorkerProcess]]:
    """Starts workers that are ready for orders, and ends them after the test."""
    started: list[WorkerProcess] = []

    def start(machine: str = "") -> WorkerProcess:
        worker = WorkerProcess(fork_server, effects, machine)
        started.append(worker)
        worker.reach("ready")
        return worker

    yield start
    for worker in started:
        worker.close()


@pytest.fixture
def caller(store_url: str, effects: Effects) -> Iterator[Caller]:
    caller = Caller(store_url, effects)
    yield caller
    caller.ledger.close()
