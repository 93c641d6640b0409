"""Classification of SQLite errors: transient ones (a lock, a full disk), and those that an operator has to correct."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from onceward.errors import StoreMisconfigured, StoreUnavailable
from onceward.store import BatchFailed

# Primary result codes: the low byte of SQLite's extended codes.
_READ_ONLY = frozenset({sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH})


def failure_of(error: Exception, path: Path) -> BatchFailed | StoreUnavailable:
    """Translate an error of the ledger's file into an exception of the store contract."""
    if isinstance(error, sqlite3.IntegrityError | sqlite3.DataError | OverflowError):
        return BatchFailed(f"SQLite refused the data: {error}")
    wrong = misconfiguration(error, path)
    if wrong is not None:
        return StoreMisconfigured(wrong)
    return StoreUnavailable(f"SQLite store {path}: {type(error).__name__}: {error}")


def misconfiguration(error: BaseException, path: str | Path) -> str | None:
    """Return what is wrong and what to do about it, or None for a transient error."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in _READ_ONLY or (code == sqlite3.SQLITE_CANTOPEN and not _is_accessible(Path(path))):
        return (
            f"SQLite cannot write to {path}: {error}; give this user write access to the file and to its folder,"
            " or name another file"
        )
    return None


def _is_accessible(path: Path) -> bool:
    """Return whether the file can be opened. With too many open files, SQLite reports the same error."""
    if path.exists() and not os.access(path, os.R_OK | os.W_OK):
        return False
    return os.access(path.parent, os.R_OK | os.W_OK | os.X_OK)
