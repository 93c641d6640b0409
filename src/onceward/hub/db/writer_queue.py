"""Queue of the processes that write to one SQLite file, so that none of them starves.

SQLite's own wait for the write lock sleeps and tries again, and a busy process takes the lock again before a sleeping
one wakes up. Here each process waits for the lock while it holds the gate. A process that releases the lock cannot get
it again before the process at the gate has had it. The gate and the lock are two bytes of one file, so that the queue
takes one file descriptor.

The queue is only about fairness. SQLite's lock keeps writers apart, so a writer that does not get through the queue in
time goes on without it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from onceward.hub.file_lock import LOCK_FILE_FLAGS, poll

# A batch takes milliseconds. A process that is in front for longer than this is frozen, or is doing a long task.
QUEUE_SECONDS = 2.0
# The bytes of the file that stand for the two locks.
_GATE, _LOCK = 0, 1


class WriterQueue:
    """Queue for the write lock of the SQLite file at `path`. One thread of a process enters it at a time."""

    def __init__(self, path: str) -> None:
        self._path = Path(f"{path}-queue")
        self._process = 0
        self._descriptor: int | None = None

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """Wait for the turn of this process, but at most `QUEUE_SECONDS`."""
        descriptor = self._opened()
        if descriptor is not None:
            self._wait(descriptor)
        try:
            yield
        finally:
            if descriptor is not None:
                _unlock(descriptor, _LOCK)

    def _wait(self, descriptor: int) -> None:
        deadline = time.monotonic() + QUEUE_SECONDS
        # `OSError`: this file system cannot lock files.
        with contextlib.suppress(OSError):
            if poll(lambda: _lock(descriptor, _GATE), deadline):
                try:
                    poll(lambda: _lock(descriptor, _LOCK), deadline)
                finally:
                    _unlock(descriptor, _GATE)

    def _opened(self) -> int | None:
        if self._process != os.getpid():
            # A forked child does not have the locks of its parent, and opens the file itself.
            self._process, self._descriptor = os.getpid(), None
            # `OSError`: the folder is not writable.
            with contextlib.suppress(OSError):
                self._descriptor = os.open(self._path, LOCK_FILE_FLAGS, 0o600)
        return self._descriptor

    def close(self) -> None:
        if self._descriptor is not None and self._process == os.getpid():
            os.close(self._descriptor)
        self._process, self._descriptor = 0, None


def _lock(descriptor: int, byte: int) -> None:
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, byte)
    except PermissionError as error:  # some systems report a lock of another process this way
        raise BlockingIOError(*error.args) from error


def _unlock(descriptor: int, byte: int) -> None:
    with contextlib.suppress(OSError):
        fcntl.lockf(descriptor, fcntl.LOCK_UN, 1, byte)
