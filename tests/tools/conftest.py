"""Ledgers for tools: on each of the embedded back ends, with a clock that tests move."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
from tests.backends import BACKENDS, Backend, Opener

from onceward import Ledger
from onceward.testing import PinnedClock

LEASE_SECONDS = 30.0


@pytest.fixture(params=["memory", "sqlite"])
def backend(request: pytest.FixtureRequest) -> Backend:
    """The embedded ones in turn. A test may choose others: `@pytest.mark.parametrize("backend", …, indirect=True)`."""
    return BACKENDS[request.param]


@pytest.fixture
def ledger(make_store: Opener, clock: PinnedClock) -> Iterator[Ledger]:
    with closing(Ledger(make_store(clock), lease_seconds=LEASE_SECONDS, wait_seconds=5)) as ledger:
        yield ledger
