"""For tests: a clock you move yourself, faults to order, and the store contract to run against a store of your own.

`StoreContract` is a class of pytest tests, so only it needs pytest installed.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from onceward.testing.clock import PinnedClock
from onceward.testing.faults import FaultyStore, crash, fault_at, freeze, reached, thaw, wait_until_frozen
from onceward.testing.flown import FlownStore
from onceward.testing.guarded import guarded

if TYPE_CHECKING:
    from onceward.testing.contract import StoreContract

__all__ = [
    "FaultyStore",
    "FlownStore",
    "PinnedClock",
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
    import pytest  # noqa: PLC0415  # here alone, so that the clock works without it

    # Before they are imported: only then does pytest show what an assert of theirs compared.
    pytest.register_assert_rewrite("onceward.testing.caller", "onceward.testing.rules", "onceward.testing.contract")
    return importlib.import_module("onceward.testing.contract").StoreContract
