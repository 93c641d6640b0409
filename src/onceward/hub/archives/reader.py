"""Chunks of bytes as a readable stream with lookahead."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

# The maximum size of a chunk, and of the part of a stream that is in memory.
PIECE_BYTES = 64 * 1024


class Stream:
    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._ahead = b""
        self._at = 0

    def peek(self, count: int) -> bytes:
        """Return the next `count` bytes without consuming them; fewer only at the end."""
        while len(self._ahead) - self._at < count and (piece := next(self._pieces, None)) is not None:
            self._ahead = self._ahead[self._at :] + piece
            self._at = 0
        return self._ahead[self._at : self._at + count]

    def read(self, count: int) -> bytes:
        """Read the next `count` bytes at once, for headers; fewer only at the end."""
        taken = self.peek(count)
        self._at += len(taken)
        return taken

    def take(self, count: int) -> Iterator[bytes]:
        """Yield the next `count` bytes in chunks; fewer only at the end."""
        while count and self.peek(1):
            piece = self.read(min(count, len(self._ahead) - self._at))
            count -= len(piece)
            yield piece

    def rest(self) -> Iterator[bytes]:
        if piece := self.read(len(self._ahead) - self._at):
            yield piece
        yield from self._pieces

    def drain(self) -> None:
        for _ in self.rest():
            pass


class Measured:
    """Iterator over chunks that counts the bytes in `count`."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self.count = 0

    def __iter__(self) -> Iterator[bytes]:
        for piece in self._pieces:
            self.count += len(piece)
            yield piece


def pieces_of(file: BinaryIO) -> Iterator[bytes]:
    while piece := file.read(PIECE_BYTES):
        yield piece
