"""A database with a ledger beside it, on each kind in turn."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from onceward.ledger import Ledger
from onceward.open import open_ledger


@pytest.fixture
def durable_url(database_url: str, tmp_path: Path) -> str:
    """A ledger of the same kind as the database."""
    return database_url if database_url.startswith("postgresql") else f"sqlite:///{tmp_path}/ledger.db"


@pytest.fixture(params=["durable", "memory"])
def ledger_url(request: pytest.FixtureRequest) -> str:
    """A ledger of the same kind as the database, and one in memory."""
    url: str = "memory:" if request.param == "memory" else request.getfixturevalue("durable_url")
    return url


@pytest.fixture
def ledger(ledger_url: str) -> Iterator[Ledger]:
    with open_ledger(ledger_url) as ledger:
        yield ledger
