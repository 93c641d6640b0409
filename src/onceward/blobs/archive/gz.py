"""Gzip: members one after another, decompressed in pieces."""

from __future__ import annotations

import zlib
from collections.abc import Generator, Iterator

from onceward.blobs.archive.stream import PIECE_BYTES
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
        data = yield from _member(data, packed)
        while not (data := data.lstrip(b"\0")):
            if (more := next(packed, None)) is None:
                return
            data = more


def _member(data: bytes, packed: Iterator[bytes]) -> Generator[bytes, None, bytes]:
    """Gives what follows the member."""
    engine = zlib.decompressobj(_GZIP_WINDOW)
    try:
        while not engine.eof:
            # Asked once more when nothing is left to read: a match may still be waiting for room.
            data = data or next(packed, b"")
            piece = engine.decompress(data, PIECE_BYTES)
            if not data and not piece and not engine.eof:
                raise Malformed("the gzip file is cut off")
            data = engine.unconsumed_tail
            if piece:
                yield piece
    except zlib.error as error:
        raise Malformed(f"the gzip file is damaged ({error})") from None
    return engine.unused_data
