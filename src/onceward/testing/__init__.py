"""Testing kit: a pinned clock, fault injection, and the store contract as tests for custom stores.

`StoreContract` is a class of pytest tests. Only this class needs pytest. Not here: this project's own tests.
Start with `contract.py`; the rules are in `rules/`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from onceward.testing.clock import PinnedClock
from onceward.testing.faults import FaultyStore, crash, fault_at, freeze, reached, thaw, wait_until_frozen
from onceward.testing.guarded import guarded
from onceward.testing.pipelined import FlownStore, PipelinedStore

if TYPE_CHECKING:
    from onceward.testing.contract import StoreContract

__all__ = [
    "FaultyStore",
    "FlownStore",
    "PinnedClock",
    "PipelinedStore",
    "StoreContract",
    "crash",
    "fault_at",
    "freeze",
    "guarded",
    "reached",
    "thaw",
    "wait_until_frozen",
]


def __getattr__(name: str) -> object:
    if name != "StoreContract":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import pytest  # noqa: PLC0415  # imported here, so that all other names work without pytest

    # Register the modules before the import. Otherwise pytest does not show the values that a failed assert compared.
    pytest.register_assert_rewrite("onceward.testing.caller", "onceward.testing.rules", "onceward.testing.contract")
    return importlib.import_module("onceward.testing.contract").StoreContract
