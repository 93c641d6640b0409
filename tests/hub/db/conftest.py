"""Databases without tables, for tests that create them."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.backends import Servers


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty database, on each kind in turn."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/hub.db"
    servers: Servers = request.getfixturevalue("servers")
    return servers.postgres.create_database()
