"""Where bytes lie, behind one small protocol.

A blob is named by the sha256 of its bytes. It is written into a spool first, which hashes it on the way, and becomes
visible whole or not at all. This package knows nothing of tasks, rows or databases; whoever keeps rows that name blobs
writes and collects them in this order:

    with blobs.spool() as spool:
        spool.write(…); spool.finish()
        key = blobs.put(spool, blob_id)          # durable, and perhaps nobody's: an orphan until its row is committed
        with blobs.guarded():                    # excludes the collector where names are shared (a folder)
            blobs.ensure(spool, key)             # the collector may have come in between
            …                                    # rows, commit
    with blobs.guarded():                        # the collector
        …                                        # check again, delete the row, commit
        blobs.discard(key)                       # only now
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from onceward.blobs.spool import Spool, Swept
from onceward.errors import InvalidInput, NotFound

# What a reader holds of a blob at a time.
CHUNK_BYTES = 256 * 1024

_SHA256 = re.compile(r"[0-9a-f]{64}")


class BlobMissing(NotFound):
    """There are no bytes under this key."""

    code = "blob-missing"


@dataclass(frozen=True, slots=True)
class Stored:
    """One blob that is there, whoever knows of it. `modified` is when its bytes were written."""

    key: str
    size: int
    modified: datetime


@dataclass(frozen=True, slots=True)
class Emptied:
    """What went from the trash for good, and what would not go: in nobody's way there, but it takes its room."""

    removed_count: int = 0
    failed_count: int = 0


class BlobStore(Protocol):
    """All methods block, may be called from any thread, and say `StoreUnavailable` when disk or server fail.

    A key that this store never gives out is `InvalidInput`.
    """

    @property
    def backend(self) -> str:
        """`local_cas` or `s3`: what a row says of where its bytes lie."""

    def look(self) -> None:
        """Ask it for something small, to see that it is there at all."""

    def spool(self) -> Spool:
        """A new temporary file. Use it as a context manager: it is gone at the end of the block."""

    def put(self, spool: Spool, blob_id: str) -> str:
        """Keep a finished spool's bytes for good and give their key. Again with the same bytes and id: the same."""

    def owner(self, mark: str) -> str:
        """Whose blobs these are: the mark of whoever asked first, kept for good.

        A collection on behalf of somebody else would take everything for garbage.
        """

    def guarded(self) -> AbstractContextManager[None]:
        """Only one holder of it at a time, among all threads and processes, where keys are shared; nothing otherwise.
        `StoreUnavailable` when another holds it for too long.

        It ends with its process, however that ends. It cannot be entered twice by one thread.
        """

    def ensure(self, spool: Spool, blob_key: str, *, verify: bool = False) -> None:
        """See, inside `guarded()`, that these bytes are under this key; put them there again if they are not.

        A blob of another size is damaged and is replaced. With `verify` its bytes are read and hashed as well.
        """

    def size(self, blob_key: str) -> int | None:
        """None: it is not there."""

    def read(self, blob_key: str, start: int = 0, end: int | None = None) -> Generator[bytes]:
        """The bytes from `start` up to, but not including, `end`, in pieces of at most 256 KiB; as far as there are any.

        `BlobMissing` comes from this call, not from the first piece.
        """

    def discard(self, blob_key: str) -> None:
        """Take it away, once no row names it. One that is not there is fine."""

    def quarantine(self, blob_key: str) -> None:
        """Put damaged bytes aside for an operator to look at; the key is then free. One that is not there is fine."""

    def keys(self) -> Iterator[Stored]:
        """Everything that is there, for sweeps and checks. What comes or goes meanwhile may be missed."""

    def sweep_temporary(self, older_than_seconds: float, *, dry_run: bool = False) -> Swept:
        """Remove the temporary files of writers that died; a living writer keeps its own. A dry run only counts."""

    def empty_trash(self, older_than_seconds: float) -> Emptied:
        """Delete for good what was discarded that long ago. What cannot be is logged, once, and keeps nothing else."""


def content_key(sha256: str) -> str:
    """`sha256/ab/cd/<sha256>`. Only lower-case hex becomes part of a name."""
    if not _SHA256.fullmatch(sha256):
        raise InvalidInput("a sha256 is 64 lower-case hexadecimal digits")
    return f"sha256/{sha256[:2]}/{sha256[2:4]}/{sha256}"
