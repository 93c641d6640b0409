"""Gzip: members one after another, decompressed in pieces."""

from __future__ import annotations

from collections.abc import Iterator

from onceward.blobs.archive.inflate import inflated
from onceward.blobs.archive.tally import Malformed

MAGIC = b"\x1f\x8b\x08"
# Tools that compress blocks in parallel write one member for every 64 KiB; more than this many hold next to nothing
# each, and are there to take time.
_MEMBERS_MAX = 100_000
_GZIP_WINDOW = 31


def decompressed(packed: Iterator[bytes]) -> Iterator[bytes]:
    """At most a piece at a time, however far it expands. Zeros after the last member are padding."""
    members, data = 0, b""
    while True:
        members += 1
        if members > _MEMBERS_MAX:
            raise Malformed("the gzip file has too many members")
        data = yield from inflated(data, packed, _GZIP_WINDOW, "the gzip file")
        while not (data := data.lstrip(b"\0")):
            if (more := next(packed, None)) is None:
                return
            data = more
