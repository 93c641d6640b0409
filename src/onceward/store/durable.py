"""Bytes that are on the disk when we say so, also on macOS: there, a plain fsync leaves them in the disk's own cache."""

from __future__ import annotations

import os
import sqlite3

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


def sync(descriptor: int) -> None:
    """Return when what was written to this file or folder survives a power failure."""
    full = getattr(fcntl, "F_FULLFSYNC", None)
    if full is None:
        os.fsync(descriptor)
        return
    try:
        fcntl.fcntl(descriptor, full)
    except OSError:
        # A disk that cannot: a share of another machine, or a device that macOS does not know.
        os.fsync(descriptor)


def sync_fully(db: sqlite3.Connection) -> None:
    """Let SQLite do the same for its log and its file. Elsewhere than on macOS these settings change nothing."""
    db.execute("PRAGMA fullfsync = ON")
    db.execute("PRAGMA checkpoint_fullfsync = ON")
