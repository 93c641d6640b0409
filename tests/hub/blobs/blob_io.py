"""Short functions that store and read a blob."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

from onceward.hub.blobs import BlobStore


def put_bytes(blobs: BlobStore, content: bytes, blob_id: str = "bl-00000001") -> str:
    with blobs.temp_file() as temp_file:
        temp_file.write(content)
        temp_file.finish()
        return blobs.put(temp_file, blob_id)


def read_all(blobs: BlobStore, key: str, start: int = 0, end: int | None = None) -> bytes:
    return b"".join(blobs.read(key, start, end))


def stored_sizes(blobs: BlobStore) -> dict[str, int]:
    """Return every key in the store, with its size."""
    return {blob.key: blob.size for blob in blobs.keys()}  # noqa: SIM118  # a method of ours, not a mapping's


def open_files() -> int:
    """Return the number of open descriptors of this process."""
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def path_of(folder: Path, content: bytes) -> Path:
    """Return the path of this content in the folder."""
    sha256 = hashlib.sha256(content).hexdigest()
    return folder / "sha256" / sha256[:2] / sha256[2:4] / sha256


def failing(number: int) -> Callable[..., None]:
    """Return a function that always raises this `OSError`, in place of one of the operating system."""

    def fail(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    return fail
