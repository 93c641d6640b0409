"""The rules of `onceward.store` as tests for any store. Needs pytest.

    from onceward.testing import StoreContract

    class TestMyStore(StoreContract):
        @pytest.fixture
        def make_store(self, tmp_path):
            return lambda clock: MyStore(tmp_path / "data", clock)

`make_store` gives a function that opens your store with a pinned clock. Within one test every call opens the same
data, empty at first (a store that lives in memory returns the same object again); between tests nothing is shared.
Whatever it opened is closed for you. Every test names its rule; there is nothing to switch off.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from onceward.store import Clock, Store
from onceward.testing.caller import Caller, OpenStore
from onceward.testing.clock import PinnedClock
from onceward.testing.rules.batches import BatchRules
from onceward.testing.rules.chunks import ChunkRules
from onceward.testing.rules.claims import ClaimRules
from onceward.testing.rules.doubts import DoubtRules
from onceward.testing.rules.kept import KeptRules
from onceward.testing.rules.lives import LifeRules
from onceward.testing.rules.pages import PageRules
from onceward.testing.rules.purges import PurgeRules
from onceward.testing.rules.times import TimeRules
from onceward.testing.rules.versions import VersionRules


class StoreContract(
    ClaimRules, DoubtRules, VersionRules, TimeRules, PurgeRules, BatchRules, ChunkRules, PageRules, KeptRules, LifeRules
):
    """Subclass it and give it a `make_store` fixture."""

    @pytest.fixture
    def make_store(self) -> OpenStore:
        raise AssertionError("give your contract class a make_store fixture that opens your store with a given clock")

    @pytest.fixture
    def clock(self) -> PinnedClock:
        return PinnedClock()

    @pytest.fixture
    def open_store(self, make_store: OpenStore) -> Iterator[OpenStore]:
        """As `make_store`, closing what it opened."""
        opened: list[Store] = []

        def open_one(clock: Clock) -> Store:
            opened.append(make_store(clock))
            return opened[-1]

        yield open_one
        for store in opened:
            store.close()

    @pytest.fixture
    def store(self, open_store: OpenStore, clock: PinnedClock) -> Store:
        return open_store(clock)

    @pytest.fixture
    def caller(self, store: Store) -> Caller:
        return Caller(store)
