"""Short ways to keep and read a blob."""

from __future__ import annotations

from pathlib import Path

from onceward.blobs import BlobStore


def keep(blobs: BlobStore, content: bytes, blob_id: str = "bl-00000001") -> str:
    with blobs.spool() as spool:
        spool.write(content)
        spool.finish()
        return blobs.put(spool, blob_id)


def whole(blobs: BlobStore, key: str, start: int = 0, end: int | None = None) -> bytes:
    return b"".join(blobs.read(key, start, end))


def kept(blobs: BlobStore) -> dict[str, int]:
    """Every key that is there, with its size."""
    return {blob.key: blob.size for blob in blobs.keys()}  # noqa: SIM118  # a method of ours, not a mapping's


def open_files() -> int:
    """How many descriptors this process holds."""
    return sum(1 for _ in Path("/proc/self/fd").iterdir())
