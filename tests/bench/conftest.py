"""Fixtures of the tests of the benchmarks."""

from __future__ import annotations

import gc

import pytest


@pytest.fixture
def few_objects() -> None:
    """Leave the objects of all other tests out of the garbage collections: a benchmark collects before each measurement."""
    gc.collect()
    gc.freeze()
