"""Gzip members, and the decompression that zip and gzip share: chunk by chunk, whatever the size of the result."""

from __future__ import annotations

import zlib
from collections.abc import Generator, Iterator

from onceward.hub.archives.limits import Malformed
from onceward.hub.archives.reader import PIECE_BYTES


def inflated(data: bytes, packed: Iterator[bytes], window: int, what: str) -> Generator[bytes, None, bytes]:
    """Yield the decompressed chunks, and return the bytes after the end. `what` names the data in `Malformed`."""
    engine = zlib.decompressobj(window)
    try:
        while not engine.eof:
            # Call it once more after the last input: output may still be waiting inside the decompressor.
            data = data or next(packed, b"")
            piece = engine.decompress(data, PIECE_BYTES)
            if not data and not piece and not engine.eof:
                raise Malformed(f"{what} is truncated")
            data = engine.unconsumed_tail
            if piece:
                yield piece
    except zlib.error as error:
        raise Malformed(f"{what} is damaged ({error})") from None
    return engine.unused_data


MAGIC = b"\x1f\x8b\x08"
# Tools that compress in parallel write one member for every 64 KiB. A file with more members than this has tiny ones,
# which only waste time.
_MEMBERS_MAX = 100_000
_GZIP_WINDOW = 31


def decompressed(packed: Iterator[bytes]) -> Iterator[bytes]:
    """Decompress all members, one chunk at a time, however far they expand. Zeros after the last member are padding."""
    members, data = 0, b""
    while True:
        members += 1
        if members > _MEMBERS_MAX:
            raise Malformed(f"the gzip file has more than {_MEMBERS_MAX} members")
        data = yield from inflated(data, packed, _GZIP_WINDOW, "the gzip file")
        while not (data := data.lstrip(b"\0")):
            if (more := next(packed, None)) is None:
                return
            data = more
