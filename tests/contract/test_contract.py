"""Every back end keeps the whole contract: no skips, no sleeps, nothing switched off."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import cast

import pytest
from tests.backends import ALL_KINDS, PIPELINED, Opener

import onceward.store
from onceward.store import Clock, Store
from onceward.testing import PipelinedStore, StoreContract
from onceward.testing.caller import OpenStore


@pytest.mark.parametrize("backend", ALL_KINDS, indirect=True)
class TestContract(StoreContract):
    @pytest.fixture
    def make_store(self, make_store: Opener) -> OpenStore:
        return make_store


@pytest.mark.parametrize("backend", PIPELINED, indirect=True)
class TestContractInFlight(StoreContract):
    """The same for batches that an event loop sends."""

    @pytest.fixture
    def make_store(self, make_store: Opener) -> Iterator[OpenStore]:
        opened: list[PipelinedStore] = []

        def open_pipelined(clock: Clock) -> Store:
            opened.append(PipelinedStore(make_store(clock)))
            opened[-1].read([])  # nothing is sent without a connection
            return cast("Store", opened[-1])

        yield open_pipelined
        assert all(store.pipelined or not store.blocked for store in opened)


def test_every_test_of_the_contract_names_its_rule_and_every_rule_has_a_test() -> None:
    rules = set(re.findall(r"^ *(\d+)\. [A-Z]", inspect.getdoc(onceward.store) or "", re.MULTILINE))
    tested = set()
    for name, test in inspect.getmembers(StoreContract, inspect.isfunction):
        if name.startswith("test_"):
            named = re.match(r"Rule (\d+)\.", test.__doc__ or "")
            assert named is not None, f"{name} does not say which rule it tests"
            tested.add(named[1])

    assert len(rules) == 9
    assert tested == rules
