"""Queue of the processes that write to one SQLite file, so that none of them starves.

SQLite's own wait for the write lock sleeps and tries again, and a busy process takes the lock again before a sleeping
one wakes up. Here each process waits for the lock file while it holds the gate. A process that releases the lock file
cannot get it again before the process at the gate has had it.

The queue is only about fairness. SQLite's lock keeps writers apart, so a writer that does not get through the queue in
time goes on without it.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from onceward.hub import file_lock

# A batch takes milliseconds. A process that is in front for longer than this is frozen, or is doing a long task.
QUEUE_SECONDS = 2.0


class WriterQueue:
    """Queue for the write lock of the SQLite file at `path`. One thread of a process enters it at a time."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._process = 0
        self._descriptors: tuple[int, int] | None = None

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """Wait for the turn of this process, but at most `QUEUE_SECONDS`."""
        lock = self._wait()
        try:
            yield
        finally:
            if lock is not None:
                file_lock.unlock(lock)

    def _wait(self) -> int | None:
        descriptors = self._opened()
        if descriptors is None:
            return None
        gate, lock = descriptors
        deadline = time.monotonic() + QUEUE_SECONDS
        try:
            if not file_lock.lock_by(gate, deadline):
                return None
            try:
                return lock if file_lock.lock_by(lock, deadline) else None
            finally:
                file_lock.unlock(gate)
        except OSError:  # this file system cannot lock files
            return None

    def _opened(self) -> tuple[int, int] | None:
        if self._process != os.getpid():
            # A forked child needs its own descriptors: it shares the locks of those that it inherited.
            self._process, self._descriptors = os.getpid(), self._open()
        return self._descriptors

    def _open(self) -> tuple[int, int] | None:
        path = Path(self._path)
        try:
            gate = os.open(path.with_name(f"{path.name}-gate"), file_lock.LOCK_FILE_FLAGS, 0o600)
            try:
                return gate, os.open(path.with_name(f"{path.name}-queue"), file_lock.LOCK_FILE_FLAGS, 0o600)
            except OSError:
                os.close(gate)
                raise
        except OSError:  # the folder is not writable
            return None

    def close(self) -> None:
        if self._descriptors is not None and self._process == os.getpid():
            for descriptor in self._descriptors:
                os.close(descriptor)
        self._process, self._descriptors = 0, None
