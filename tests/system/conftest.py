from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.backends import BACKENDS, Backend, Servers
from tests.system.nursery import Nursery
from tests.system.process import Caller, Effects, WorkerProcess


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def backend(request: pytest.FixtureRequest) -> Backend:
    """Those that several processes share."""
    return BACKENDS[request.param]


@pytest.fixture
def new_url(backend: Backend, servers: Servers, tmp_path: Path) -> Callable[[], str]:
    """Makes URLs of stores that nobody has opened yet: nothing is there, not even a table."""

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
def nursery() -> Iterator[Nursery]:
    with closing(Nursery()) as nursery:
        yield nursery


@pytest.fixture
def start_worker(nursery: Nursery, effects: Effects) -> Iterator[Callable[..., WorkerProcess]]:
    """Starts workers that are ready for orders, and ends them with the test."""
    started: list[WorkerProcess] = []

    def start(machine: str = "") -> WorkerProcess:
        worker = WorkerProcess(nursery, effects, machine)
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
