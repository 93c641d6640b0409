"""The batcher on a store that the test holds. Modules about a real store have a `store` of their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.store.gate import GateStore

from onceward.store.batch import Batcher


@pytest.fixture
def store() -> GateStore:
    return GateStore()


@pytest.fixture
def line(store: GateStore) -> Iterator[Batcher]:
    batcher = Batcher(store, lambda _: False)
    yield batcher
    store.let_go()
    batcher.close()
