"""Rows and bytes on SQLite with a folder, and on PostgreSQL with S3, in turn."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.backends import Servers
from tests.hub.tasks import backends
from tests.hub.tasks.attachment_store import AttachmentStore


@pytest.fixture(params=backends.BOTH)
def backend(request: pytest.FixtureRequest) -> str:
    """A test may choose others: `@pytest.mark.parametrize("backend", backends.ALL)`."""
    name: str = request.param
    return name


@pytest.fixture
def attachment_store(
    backend: str, request: pytest.FixtureRequest, servers: Servers, tmp_path: Path
) -> Iterator[AttachmentStore]:
    """An attachment store with one task, `t1`."""
    if backend.endswith("s3"):
        request.getfixturevalue("s3_server")
    with backends.opened(backend, servers, tmp_path) as attachment_store:
        attachment_store.task()
        yield attachment_store
