"""Durable file writes, including on macOS, where a plain fsync leaves the bytes in the cache of the disk."""

from __future__ import annotations

import os
import sqlite3

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


def sync(descriptor: int) -> None:
    """Wait until the writes to this file or folder would survive a power failure."""
    full = getattr(fcntl, "F_FULLFSYNC", None)
    if full is None:
        os.fsync(descriptor)
        return
    try:
        fcntl.fcntl(descriptor, full)
    except OSError:
        # The disk does not support it: a network share, or a device that macOS does not know.
        os.fsync(descriptor)


def sync_fully(db: sqlite3.Connection) -> None:
    """Have SQLite sync its log and its file in the same way. Outside of macOS these settings have no effect."""
    db.execute("PRAGMA fullfsync = ON")
    db.execute("PRAGMA checkpoint_fullfsync = ON")
