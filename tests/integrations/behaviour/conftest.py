"""Each test runs with every adapter. A fork server for each framework imports it once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.faults.fork_server import ForkServer
from tests.integrations.behaviour.agent_worker import ADAPTERS, AdapterSpec, AgentWorker

from onceward import open_ledger


@pytest.fixture(params=[pytest.param(one, id=f"{one.module.removesuffix('_adapter')}-{one.name}") for one in ADAPTERS])
def adapter(request: pytest.FixtureRequest) -> AdapterSpec:
    found: AdapterSpec = request.param
    return found


@pytest.fixture(scope="session")
def fork_servers() -> Iterator[Callable[[str], ForkServer]]:
    started: dict[str, ForkServer] = {}

    def start(module: str) -> ForkServer:
        if module not in started:
            started[module] = ForkServer(f"tests.integrations.behaviour.{module}")
        return started[module]

    yield start
    for one in started.values():
        one.close()


@pytest.fixture
def start_worker(
    adapter: AdapterSpec, fork_servers: Callable[[str], ForkServer], tmp_path: Path
) -> Iterator[Callable[[], AgentWorker]]:
    with open_ledger(f"sqlite:///{tmp_path / 'ledger.db'}") as ledger:
        ledger.blocking.purge()  # creates the tables
    started: list[AgentWorker] = []

    def start() -> AgentWorker:
        started.append(AgentWorker(fork_servers(adapter.module), adapter, tmp_path))
        return started[-1]

    yield start
    for one in started:
        one.close()


@pytest.fixture
def worker(start_worker: Callable[[], AgentWorker]) -> AgentWorker:
    return start_worker()


@pytest.fixture
def effects(tmp_path: Path) -> Callable[[], list[str]]:
    """Return the effects that happened, as counted outside: the order of each."""

    def read() -> list[str]:
        path = tmp_path / "effects"
        return path.read_text().splitlines() if path.exists() else []

    return read
