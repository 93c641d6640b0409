"""Rows and bytes on SQLite with a folder, and on PostgreSQL with S3, in turn."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.backends import Servers
from tests.tasks import places
from tests.tasks.vault import Vault


@pytest.fixture(params=places.BOTH)
def place(request: pytest.FixtureRequest) -> str:
    """A test may choose others: `@pytest.mark.parametrize("place", places.ALL)`."""
    name: str = request.param
    return name


@pytest.fixture
def vault(place: str, request: pytest.FixtureRequest, servers: Servers, tmp_path: Path) -> Iterator[Vault]:
    """Empty but for one task, `t1`."""
    if place.endswith("s3"):
        request.getfixturevalue("s3_server")
    with places.opened(place, servers, tmp_path) as vault:
        vault.task()
        yield vault
