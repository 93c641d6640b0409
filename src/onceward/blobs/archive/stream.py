"""Bytes that come once, in pieces, read as a file that can be looked ahead in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

# Pieces are at most this large, and so is what is held of a stream.
PIECE_BYTES = 64 * 1024


class Stream:
    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._ahead = b""
        self._at = 0

    def peek(self, count: int) -> bytes:
        """The next `count` bytes, fewer only at the end; they stay."""
        while len(self._ahead) - self._at < count and (piece := next(self._pieces, None)) is not None:
            self._ahead = self._ahead[self._at :] + piece
            self._at = 0
        return self._ahead[self._at : self._at + count]

    def read(self, count: int) -> bytes:
        """The next `count` bytes, fewer only at the end. For headers: all of them are held at once."""
        taken = self.peek(count)
        self._at += len(taken)
        return taken

    def take(self, count: int) -> Iterator[bytes]:
        """The next `count` bytes in pieces, fewer only at the end."""
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
    """Pieces on their way through; `count` is how many bytes have passed."""

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
