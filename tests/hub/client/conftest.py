"""A hub for these tests, in a separate process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Protocol, TypeVar, Unpack
from uuid import uuid4

import pytest
from tests.hub.hub_process import running_hub

from onceward.hub.client import Hub
from onceward.hub.client.connection import HubOptions
from onceward.hub.db.engine import open_database
from onceward.hub.events.log import PAGE_MAX, NewEvent, append

T = TypeVar("T")

# Ends a test that would hang.
SECONDS_MAX = 60.0


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hub") / "data"


@pytest.fixture(scope="session")
def url(data_dir: Path) -> Iterator[str]:
    """A shared hub: every test creates its own topics."""
    with running_hub(data_dir=data_dir) as hub:
        yield hub.url


@pytest.fixture
def many_events(url: str, data_dir: Path) -> tuple[str, int]:  # noqa: ARG001  # the hub has made the tables
    """A topic with more events than one page has, and their number."""
    topic_id, count = f"top_{uuid4().hex}", PAGE_MAX + 1
    with closing(open_database(f"sqlite:///{data_dir}/hub.db")) as database, database.write() as tx:
        append(tx, [NewEvent("test", topic_id, "test", str(number), "{}") for number in range(count)])
    return topic_id, count


class RunWithHub(Protocol):
    def __call__(
        self, url: str, use: Callable[[Hub], Awaitable[T]], token: str | None = None, **options: Unpack[HubOptions]
    ) -> T: ...


@pytest.fixture
def run_with_hub() -> RunWithHub:
    """`run_with_hub(url, use)` opens a client, and returns the result of `use(client)`."""

    def run_with_hub(
        url: str, use: Callable[[Hub], Awaitable[T]], token: str | None = None, **options: Unpack[HubOptions]
    ) -> T:
        async def main() -> T:
            async with asyncio.timeout(SECONDS_MAX), Hub(url, token, **options) as hub:
                return await use(hub)

        return asyncio.run(main())

    return run_with_hub
