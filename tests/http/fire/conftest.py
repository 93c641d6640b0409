"""Workers that share a store, and the effects they have outside."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Protocol

import pytest
from tests.backends import BACKENDS, Backend
from tests.http.fire.workers import Worker
from tests.system.nursery import Nursery
from tests.system.process import Effects


class StartWorker(Protocol):
    """Starts a worker on the test's store: `start_worker(fault_at("after-effect", "crash"), lease_seconds=0.5)`."""

    def __call__(self, fault: dict[str, str] | None = None, **options: Any) -> Worker: ...


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def backend(request: pytest.FixtureRequest) -> Backend:
    """Those that several processes share."""
    return BACKENDS[request.param]


@pytest.fixture
def effects(tmp_path: Path) -> Effects:
    return Effects(tmp_path / "effects")


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    with closing(Nursery("tests.http.fire.worker")) as nursery:
        yield nursery


@pytest.fixture
def start_worker(nursery: Nursery, store_url: str, effects: Effects) -> Iterator[StartWorker]:
    with ExitStack() as stack:

        def start(fault: dict[str, str] | None = None, **options: Any) -> Worker:
            return stack.enter_context(closing(Worker(nursery, store_url, effects, fault, **options)))

        yield start
