"""Files of lines, of any length, read in pieces."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import BinaryIO

# No message is longer; what is, is broken, and must not fill the memory.
MESSAGE_BYTES_MAX = 64 * 1024 * 1024
MARK_BYTES = 64 * 1024


def lines(file: BinaryIO) -> Iterator[bytes]:
    """Its lines with their ends. One that is too long comes in several pieces, of which only the last has an end."""
    while line := file.readline(MESSAGE_BYTES_MAX):
        yield line


def mark_of(beginning: bytes) -> str:
    """A digest of how a file begins. Files grow at their end, so only what is sure to stay is looked at."""
    return hashlib.sha256(beginning).hexdigest()[:32]
