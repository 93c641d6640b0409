"""Decompresses what zip and gzip share, piece by piece, however much it would become."""

from __future__ import annotations

import zlib
from collections.abc import Generator, Iterator

from onceward.blobs.archive.stream import PIECE_BYTES
from onceward.blobs.archive.tally import Malformed


def inflated(data: bytes, packed: Iterator[bytes], window: int, what: str) -> Generator[bytes, None, bytes]:
    """The pieces; gives what follows the end. `Malformed` says that `what` is cut off or damaged."""
    engine = zlib.decompressobj(window)
    try:
        while not engine.eof:
            # Asked once more when nothing is left to read: a match may still be waiting for room.
            data = data or next(packed, b"")
            piece = engine.decompress(data, PIECE_BYTES)
            if not data and not piece and not engine.eof:
                raise Malformed(f"{what} is cut off")
            data = engine.unconsumed_tail
            if piece:
                yield piece
    except zlib.error as error:
        raise Malformed(f"{what} is damaged ({error})") from None
    return engine.unused_data
