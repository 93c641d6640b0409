"""SQLite's log of changes is copied back into its file by a thread of its own, so that no writer waits for that.

A commit is durable once it is in the log. SQLite would copy the log back itself, in whichever transaction makes it too
long; for one request that is a stall, and for a backfill a sixth of its time.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading

from onceward.store.durable import sync_fully

# So many rows were changed since the last copy: a thousand pages or a few, about what SQLite itself takes for enough.
ROWS = 1_000
# A thread that has nothing to copy for so long ends; a forgotten database leaves none.
IDLE_SECONDS = 10.0


class Copying:
    """`add` is called by one writer at a time, after its commit."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._rows = 0
        self._lock = threading.Lock()  # guards what follows
        self._thread: threading.Thread | None = None
        self._closed = False
        self._wanted = threading.Event()

    def add(self, rows: int) -> None:
        """So many rows were changed."""
        self._rows += rows
        if self._rows < ROWS:
            return
        self._rows = 0
        with self._lock:
            self._wanted.set()
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._work, name="onceward-copying", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """End the thread and wait for it. What is in the log stays there for whoever opens the file next."""
        with self._lock:
            self._closed = True
            self._wanted.set()
            thread = self._thread
        if thread is not None:
            thread.join()

    def _work(self) -> None:
        # What cannot be copied now, for want of room perhaps, is as durable in the log, and is copied later.
        with contextlib.suppress(sqlite3.Error), contextlib.closing(sqlite3.connect(self._path)) as db:
            db.execute("PRAGMA synchronous = FULL")
            sync_fully(db)
            while self._is_wanted():
                # Neither readers nor writers wait for it, nor it for them.
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
