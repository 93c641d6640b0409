"""Which errors of SQLite pass by themselves (a lock, a full disk), and which an operator has to correct."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from onceward.errors import StoreMisconfigured, StoreUnavailable
from onceward.store import BatchFailed

# Their low byte; SQLite's extended codes say more in the bytes above it.
_READ_ONLY = frozenset({sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH})


def failure_of(error: Exception, path: Path) -> BatchFailed | StoreUnavailable:
    """An error of the ledger's file as one of ours."""
    if isinstance(error, sqlite3.IntegrityError | sqlite3.DataError | OverflowError):
        return BatchFailed(f"SQLite refused the data: {error}")
    wrong = misconfiguration(error, path)
    if wrong is not None:
        return StoreMisconfigured(wrong)
    return StoreUnavailable(f"SQLite store {path}: {type(error).__name__}: {error}")


def misconfiguration(error: BaseException, path: str | Path) -> str | None:
    """What is wrong and what to do about it; None for an error that may pass by itself."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in _READ_ONLY or (code == sqlite3.SQLITE_CANTOPEN and not _is_accessible(Path(path))):
        return (
            f"SQLite cannot write to {path}: {error}; give this user write access to the file and to its folder,"
            " or name another file"
        )
    return None


def _is_accessible(path: Path) -> bool:
    """Too many open files also look as if the file could not be opened."""
    if path.exists() and not os.access(path, os.R_OK | os.W_OK):
        return False
    return os.access(path.parent, os.R_OK | os.W_OK | os.X_OK)
