"""Workers that share a store, and the effects they have outside."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Protocol

import pytest
from tests.backends import BACKENDS, Backend
from tests.faults.fork_server import ForkServer
from tests.faults.http.http_worker_process import Worker
from tests.faults.worker_process import Effects


class StartWorker(Protocol):
    """Starts a worker on the test's store: `start_worker(fault_at("after-effect", "crash"), lease_seconds=0.5)`."""

    def __call__(self, fault: dict[str, str] | None = None, **options: Any) -> Worker: ...


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def backend(request: pytest.FixtureRequest) -> Backend:
    """The stores that several processes can share."""
    return BACKENDS[request.param]


@pytest.fixture
def effects(tmp_path: Path) -> Effects:
    return Effects(tmp_path / "effects")


@pytest.fixture(scope="session")
def fork_server() -> Iterator[ForkServer]:
    with closing(ForkServer("tests.faults.http.worker")) as fork_server:
        yield fork_server


@pytest.fixture
def start_worker(fork_server: ForkServer, store_url: str, effects: Effects) -> Iterator[StartWorker]:
    with ExitStack() as stack:

        def start(fault: dict[str, str] | None = None, **options: Any) -> Worker:
            return stack.enter_context(closing(Worker(fork_server, store_url, effects, fault, **options)))

        yield start
