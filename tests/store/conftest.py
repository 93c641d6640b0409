"""The batcher on a store that the test can block, and a Redis store behind a proxy that counts round trips.

Modules about a real store have a `store` and a `url` of their own.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing

import pytest
from tests.servers.redis import RedisServer
from tests.servers.tcp_proxy import TcpProxy
from tests.store.blockable_store import BlockableStore
from tests.waiting import until

from onceward.store.dispatch import batcher as batcher_module
from onceward.store.dispatch import inflight, pipeline
from onceward.store.dispatch.batcher import Batcher
from onceward.store.redis import RedisStore


@pytest.fixture
def store() -> BlockableStore:
    return BlockableStore()


@pytest.fixture
def batcher(store: BlockableStore) -> Iterator[Batcher]:
    batcher = Batcher(store, lambda _: False)
    yield batcher
    store.let_go()
    batcher.close()


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch, batcher: Batcher) -> None:
    """However slow the machine is, the I/O thread leaves every batch to its loop.

    The thread sleeps from the start. Were it awake, it could look at the queue between the moment that a task queues a
    write and the moment that the task awaits it, and would commit that write itself.
    """
    for module in (inflight, pipeline):
        monkeypatch.setattr(module, "LOOP_GRACE_SECONDS", 3600.0)
    monkeypatch.setattr(inflight, "LOST_LOOP_SECONDS", 3600.0)
    monkeypatch.setattr(batcher_module, "IDLE_SECONDS", 600.0)
    batcher.wake_thread_at(time.monotonic() + 3600)
    until(lambda: batcher._wakeup._until > time.monotonic(), "the I/O thread never went to sleep")


@pytest.fixture
def proxy(redis_server: RedisServer) -> Iterator[TcpProxy]:
    with TcpProxy(redis_server.port) as proxy:
        yield proxy


@pytest.fixture
def proxied(proxy: TcpProxy, url: str, redis_server: RedisServer) -> Iterator[RedisStore]:
    """An open store behind the proxy, whose script the server knows."""
    with closing(RedisStore(url.replace(str(redis_server.port), str(proxy.port)))) as store:
        store.read([])
        proxy.trips = 0
        yield store
