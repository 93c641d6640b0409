"""The contract through a pooler in transaction mode: two tests of each rule, or with `make test-pooler` all of them."""

from __future__ import annotations

import inspect
import os
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from typing import cast

import pytest
from tests.backends import Opener, Servers

from onceward.store import Clock, Store
from onceward.store.postgres import PostgresStore
from onceward.testing import PipelinedStore, StoreContract
from onceward.testing.caller import OpenStore

_IN_FULL = os.environ.get("ONCEWARD_POOLER") == "1"


def sample(each: int) -> type[StoreContract]:
    """The contract with this many tests of each rule, or all. pytest collects only functions."""
    seen: Counter[str] = Counter()
    left_out: dict[str, None] = {}
    for name, test in inspect.getmembers(StoreContract, inspect.isfunction):
        if name.startswith("test_"):
            named = re.match(r"Rule (\d+)\.", test.__doc__ or "")
            assert named is not None
            seen[named[1]] += 1
            if seen[named[1]] > each and not _IN_FULL:
                left_out[name] = None
    return type("Sample", (StoreContract,), left_out)


@pytest.fixture
def pooled(servers: Servers) -> Iterator[Opener]:
    with closing(Opener(servers.pgbouncer.url(servers.emptied_database()))) as opener:
        yield opener


class TestContract(sample(2)):  # type: ignore[misc]  # a class that is made here
    @pytest.fixture
    def make_store(self, pooled: Opener) -> OpenStore:
        return pooled


class TestContractInFlight(sample(1)):  # type: ignore[misc]
    """The same for batches that an event loop sends."""

    @pytest.fixture
    def make_store(self, pooled: Opener) -> Iterator[OpenStore]:
        opened: list[PipelinedStore] = []

        def open_pipelined(clock: Clock) -> Store:
            store = pooled(clock)
            opened.append(PipelinedStore(store))
            opened[-1].read([])  # nothing is sent without a connection
            assert isinstance(store, PostgresStore)
            assert store.connection.driver is not None
            assert store.connection.driver.is_pooled
            return cast("Store", opened[-1])

        yield open_pipelined
        assert all(store.pipelined or not store.blocked for store in opened)
