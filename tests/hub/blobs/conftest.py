"""Each kind of blob store in turn, empty."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.backends import Servers
from tests.servers.s3 import S3Server

from onceward.hub.blobs import BlobStore
from onceward.hub.blobs.folder import FolderBlobs
from onceward.hub.blobs.open import open_blobs


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "blobs"


@pytest.fixture
def in_folder(folder: Path) -> FolderBlobs:
    return FolderBlobs(folder)


@pytest.fixture(params=["folder", "s3", "s3-in-parts"])
def blobs_url(request: pytest.FixtureRequest, folder: Path, servers: Servers) -> str:
    if request.param == "folder":
        return folder.as_uri()
    server: S3Server = request.getfixturevalue("s3_server")
    return server.fresh_url(servers.partial_s3.endpoint if request.param == "s3-in-parts" else "")


@pytest.fixture
def blobs(blobs_url: str, tmp_path: Path) -> BlobStore:
    return open_blobs(blobs_url, temp_folder=tmp_path / "spool")


@pytest.fixture
def overwrite(blobs_url: str, folder: Path, blobs: BlobStore) -> Callable[[str, bytes], None]:
    """Overwrites a blob without the store."""

    def in_folder(key: str, content: bytes) -> None:
        path = folder / key
        path.chmod(0o600)
        path.write_bytes(content)

    def in_bucket(key: str, content: bytes) -> None:
        import obstore  # noqa: PLC0415  # only here, and only for S3

        from onceward.hub.blobs.s3 import S3Blobs  # noqa: PLC0415

        assert isinstance(blobs, S3Blobs)
        obstore.put(blobs._store, key, content)

    return in_folder if blobs_url.startswith("file:") else in_bucket
