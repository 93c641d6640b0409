"""Lines of a file, read with a length limit, and digests that identify files."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import BinaryIO

# Longer than any real message. A longer one is damaged, and must not fill the memory.
MESSAGE_BYTES_MAX = 64 * 1024 * 1024
MARK_BYTES = 64 * 1024


def lines(file: BinaryIO) -> Iterator[bytes]:
    """Yield the lines with their line endings. A line that is too long comes in pieces; only the last has an ending."""
    while line := file.readline(MESSAGE_BYTES_MAX):
        yield line


def mark_of(beginning: bytes) -> str:
    """Return a digest of the beginning of a file. Files grow at the end, so their beginning stays the same."""
    return hashlib.sha256(beginning).hexdigest()[:32]
