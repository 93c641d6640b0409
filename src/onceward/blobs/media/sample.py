"""What is read of a file to tell what it is: its beginning, sometimes its end or a place that the beginning points to.

However large the file, the reads are few and bounded; nothing is unpacked.
"""

from __future__ import annotations

import io
from dataclasses import dataclass, field

# An ISO 9660 image is known by five bytes at 32 KiB; nothing that we look for in a beginning lies deeper.
HEAD_BYTES = 64 * 1024
# Enough to see whether a long text ends as text. The end of a ZIP file is looked for in its own, larger tail.
TAIL_BYTES = 4 * 1024


@dataclass(frozen=True, slots=True)
class Sample:
    """The beginning of a file, and the file itself for the few reads that depend on it."""

    file: io.BufferedIOBase = field(repr=False)
    size: int
    head: bytes = field(repr=False)

    @property
    def is_whole(self) -> bool:
        return len(self.head) == self.size

    def read(self, start: int, length: int) -> bytes:
        """Up to that many bytes from there; fewer, or none, where the file is shorter than its header says."""
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
