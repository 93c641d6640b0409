"""Blob stores: bytes in a folder or in S3, behind one small protocol.

Not here: the rows that name them (`hub/tasks/`).
Start with the order below, then `folder.py`.

A blob is named by the sha256 of its bytes. The bytes first go into a temporary file, which hashes them as they are
written. A blob becomes visible as a whole or not at all. This package knows nothing of tasks, rows or databases. A
caller whose rows reference blobs writes and deletes them in this order:

    with blobs.temp_file() as temp_file:
        temp_file.write(…); temp_file.finish()
        key = blobs.put(temp_file, blob_id)      # durable, but an orphan until a row is committed
        with blobs.lock():                       # excludes gc where names are shared (a folder)
            blobs.ensure(temp_file, key)         # gc may have deleted the bytes meanwhile
            …                                    # rows, commit
    with blobs.lock():                           # gc
        …                                        # check again, delete the row, commit
        blobs.discard(key)                       # only now
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

from onceward.errors import InvalidInput, NotFound

if TYPE_CHECKING:
    from onceward.hub.blobs.temp_file import Swept, TempFile

__all__ = ["folder", "open", "temp_file"]

# The largest piece of a blob that a reader gets at a time.
CHUNK_BYTES = 256 * 1024

_SHA256 = re.compile(r"[0-9a-f]{64}")


class BlobMissing(NotFound):
    """The store has no bytes under this key."""

    code = "blob-missing"


@dataclass(frozen=True, slots=True)
class Stored:
    """A blob in the store, with or without a row. `modified` is the time when its bytes were written."""

    key: str
    size: int
    modified: datetime


@dataclass(frozen=True, slots=True)
class Emptied:
    """Counts of files deleted from the trash, and of files that could not be deleted and still use disk space."""

    removed_count: int = 0
    failed_count: int = 0


class BlobStore(Protocol):
    """Protocol of a blob store. All methods block and may be called from any thread.

    They raise `StoreUnavailable` if the disk or the server fails, and `InvalidInput` for a key that this store never
    returns.
    """

    @property
    def backend(self) -> str:
        """`local_cas` or `s3`: the value of `storage_backend` in the rows of its blobs."""

    def ping(self) -> None:
        """Make a small request to see whether the store is available."""

    def temp_file(self) -> TempFile:
        """Create a temporary file. Use it as a context manager, which removes it at the end of the block."""

    def put(self, temp_file: TempFile, blob_id: str) -> str:
        """Store the bytes of a finished temporary file and return their key, the same for the same bytes and id."""

    def owner(self, mark: str) -> str:
        """Return the mark of the database that owns these blobs. The first caller's mark is recorded for good.

        A gc run for another database would take all blobs for garbage, so it is refused.
        """

    def lock(self) -> AbstractContextManager[None]:
        """Hold the blob lock exclusively: no other thread or process holds it, not even shared.

        Raises `StoreUnavailable` if another holder keeps it for too long. The lock ends with its process, however the
        process ends. A thread cannot enter it twice. A store that does not share keys between uploads needs no lock,
        and this does nothing.
        """

    def lock_shared(self) -> AbstractContextManager[None]:
        """Hold the blob lock together with others that share it. It excludes `lock()`, and with that gc."""

    def ensure(self, temp_file: TempFile, blob_key: str, *, verify: bool = False) -> None:
        """Check, inside `lock()` or `lock_shared()`, that these bytes are stored under this key; store them again if not.

        A blob of a different size is damaged and is replaced. With `verify`, its bytes are read and hashed as well.
        """

    def size(self, blob_key: str) -> int | None:
        """Return the size of a blob in bytes; None if it does not exist."""

    def read(self, blob_key: str, start: int = 0, end: int | None = None) -> Generator[bytes]:
        """Return the bytes from `start` up to, but not including, `end`, in pieces of at most 256 KiB.

        `BlobMissing` is raised by the call itself, not when the first piece is read. `end` may be after the blob's end.
        """

    def discard(self, blob_key: str) -> None:
        """Delete a blob that no row references any more. It need not exist."""

    def quarantine(self, blob_key: str) -> None:
        """Move damaged bytes aside for an operator, which frees the key. The blob need not exist."""

    def keys(self) -> Iterator[Stored]:
        """Yield all blobs, for gc and fsck. Blobs that are added or deleted meanwhile may be missed."""

    def sweep_temporary(self, older_than_seconds: float, *, dry_run: bool = False) -> Swept:
        """Remove temporary files of dead writers, but not those of living ones. A dry run only counts."""

    def empty_trash(self, older_than_seconds: float) -> Emptied:
        """Delete blobs permanently that were discarded before this time. Failures are logged once and stop nothing."""


def content_key(sha256: str) -> str:
    """Return `sha256/ab/cd/<sha256>`. Only lower-case hexadecimal digits are accepted as part of a name."""
    if not _SHA256.fullmatch(sha256):
        raise InvalidInput("a sha256 must be 64 lower-case hexadecimal digits")
    return f"sha256/{sha256[:2]}/{sha256[2:4]}/{sha256}"
