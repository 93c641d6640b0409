"""Sample of a file for detection: its beginning, and sometimes its end or a place that the beginning points to.

The reads are few and bounded, whatever the size of the file. Nothing is unpacked.
"""

from __future__ import annotations

import io
from dataclasses import dataclass, field

# The deepest signature is that of an ISO 9660 image: five bytes at 32 KiB.
HEAD_BYTES = 64 * 1024
# Enough to check whether a long text ends as text. The search for the end of a ZIP file reads a larger tail.
TAIL_BYTES = 4 * 1024


@dataclass(frozen=True, slots=True)
class Sample:
    """The beginning of a file, and the file itself for a few further reads."""

    file: io.BufferedIOBase = field(repr=False)
    size: int
    head: bytes = field(repr=False)

    @property
    def is_whole(self) -> bool:
        return len(self.head) == self.size

    def read(self, start: int, length: int) -> bytes:
        """Read up to `length` bytes from `start`; fewer or none if the file ends before."""
        if start < 0 or start >= self.size or length <= 0:
            return b""
        if start + length <= len(self.head):
            return self.head[start : start + length]
        self.file.seek(start)
        return self.file.read(length)

    def tail(self, length: int = TAIL_BYTES) -> bytes:
        return self.read(max(0, self.size - length), length)


def take(file: io.BufferedIOBase) -> Sample:
    size = file.seek(0, io.SEEK_END)
    file.seek(0)
    return Sample(file, size, file.read(HEAD_BYTES))
