"""WAL checkpoint: a thread that copies SQLite's write-ahead log into the database file, so that no writer waits for it.

A commit is durable once it is in the log. SQLite's automatic checkpoint runs inside the transaction that makes the log
too long. That would stall one request, and take a sixth of the time of a backfill.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading

from onceward.store.durable import sync_fully

# Checkpoint after this many changed rows: about a thousand to a few thousand pages. SQLite's own default is 1,000 pages.
ROWS = 1_000
# An idle thread ends after this time, so that a database that was never closed leaves no thread.
IDLE_SECONDS = 10.0


class WalCheckpoint:
    """Background checkpoint of one database file. One writer at a time calls `add`, after its commit."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._rows = 0
        self._lock = threading.Lock()  # guards the attributes below
        self._thread: threading.Thread | None = None
        self._closed = False
        self._wanted = threading.Event()

    def add(self, rows: int) -> None:
        """Count changed rows, and wake or start the thread when there are enough."""
        self._rows += rows
        if self._rows < ROWS:
            return
        self._rows = 0
        with self._lock:
            self._wanted.set()
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._work, name="onceward-checkpoint", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """End the thread and wait for it. The rest of the log stays for the next process that opens the file."""
        with self._lock:
            self._closed = True
            self._wanted.set()
            thread = self._thread
        if thread is not None:
            thread.join()

    def _work(self) -> None:
        # A failed checkpoint, for example on a full disk, loses nothing: the log is durable and is copied later.
        with contextlib.suppress(sqlite3.Error), contextlib.closing(sqlite3.connect(self._path)) as db:
            db.execute("PRAGMA synchronous = FULL")
            sync_fully(db)
            while self._is_wanted():
                # PASSIVE: neither blocks readers and writers nor waits for them.
                db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        with self._lock:
            if self._thread is threading.current_thread():
                self._thread = None

    def _is_wanted(self) -> bool:
        if not self._wanted.wait(IDLE_SECONDS):
            with self._lock:
                if not self._wanted.is_set():
                    self._thread = None
                    return False
        self._wanted.clear()
        return not self._closed
