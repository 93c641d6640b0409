"""A database with a ledger beside it, on each kind in turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from onceward.ledger import Ledger
from onceward.open import open_ledger


@pytest.fixture(params=["durable", "memory"])
def ledger_url(request: pytest.FixtureRequest, database_url: str, tmp_path: Path) -> str:
    """A ledger of the same kind as the database, and one in memory."""
    if request.param == "memory":
        return "memory:"
    return database_url if database_url.startswith("postgresql") else f"sqlite:///{tmp_path}/ledger.db"


@pytest.fixture
def open_ledgers() -> Iterator[Callable[..., Ledger]]:
    """Opens ledgers, and closes them with the test."""
    with ExitStack() as stack:
        yield lambda url, **options: stack.enter_context(open_ledger(url, **options))


@pytest.fixture
def ledger(ledger_url: str, open_ledgers: Callable[..., Ledger]) -> Ledger:
    return open_ledgers(ledger_url)
