"""The batcher on a store that the test holds, and a Redis store on a wire that the test listens to.

Modules about a real store have a `store` and a `url` of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
from tests.servers.redis import RedisServer
from tests.store.gate import GateStore
from tests.store.tap import Tap

from onceward.store import flight, flights
from onceward.store.batch import Batcher
from onceward.store.redis import RedisStore


@pytest.fixture
def store() -> GateStore:
    return GateStore()


@pytest.fixture
def line(store: GateStore) -> Iterator[Batcher]:
    batcher = Batcher(store, lambda _: False)
    yield batcher
    store.let_go()
    batcher.close()


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is, nobody takes a loop for busy."""
    for module in (flight, flights):
        monkeypatch.setattr(module, "PATROL_SECONDS", 3600.0)
    monkeypatch.setattr(flight, "LOOK_SECONDS", 3600.0)


@pytest.fixture
def tap(redis_server: RedisServer) -> Iterator[Tap]:
    with Tap(redis_server.port) as tap:
        yield tap


@pytest.fixture
def tapped(tap: Tap, url: str, redis_server: RedisServer) -> Iterator[RedisStore]:
    """A store behind the tap, opened, its script known to the server."""
    with closing(RedisStore(url.replace(str(redis_server.port), str(tap.port)))) as store:
        store.read([])
        tap.trips = 0
        yield store
