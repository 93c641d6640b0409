"""Contract tests: the rules of `onceward.store` as tests for any store. Needs pytest.

    from onceward.testing import StoreContract

    class TestMyStore(StoreContract):
        @pytest.fixture
        def make_store(self, tmp_path):
            return lambda clock: MyStore(tmp_path / "data", clock)

`make_store` returns a function that opens your store with a pinned clock. Within one test, every call opens the same
data, which is empty at first. For a store in memory, the function returns the same object again. Tests share no data.
The contract closes every store that it opened. Every test names its rule, and no test is optional.
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
from onceward.testing.rules.clocks import TimeRules
from onceward.testing.rules.doubts import DoubtRules
from onceward.testing.rules.fidelity import FidelityRules
from onceward.testing.rules.lifecycle import LifecycleRules
from onceward.testing.rules.pages import PageRules
from onceward.testing.rules.purges import PurgeRules
from onceward.testing.rules.recovery import RecoveryRules
from onceward.testing.rules.retention import RetentionRules
from onceward.testing.rules.versions import VersionRules


class StoreContract(
    ClaimRules,
    DoubtRules,
    VersionRules,
    TimeRules,
    PurgeRules,
    RecoveryRules,
    RetentionRules,
    BatchRules,
    ChunkRules,
    PageRules,
    FidelityRules,
    LifecycleRules,
):
    """Tests of every rule for stores. Subclass it and define a `make_store` fixture that opens your store."""

    @pytest.fixture
    def make_store(self) -> OpenStore:
        """Return a function that opens your store with a given clock. Your subclass defines this fixture."""
        raise AssertionError(
            "the contract class has no make_store fixture: define one that returns a function which opens your store"
            " with a given clock"
        )

    @pytest.fixture
    def clock(self) -> PinnedClock:
        return PinnedClock()

    @pytest.fixture
    def open_store(self, make_store: OpenStore) -> Iterator[OpenStore]:
        """Open stores with `make_store`, and close them after the test."""
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
