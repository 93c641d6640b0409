"""Blob lock of a folder: one holder at a time, among all threads and processes of the host.

The holder has locked the file `lock`. Each process waits for it while it holds a lock on the folder `tmp`, the gate.
Without the gate, a busy process could take the lock again right after releasing it, and starve the others.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from onceward.errors import StoreUnavailable
from onceward.hub.blobs.temp_file import FOLDER_FLAGS, failing_as
from onceward.store.forks import at_fork

# A commit takes milliseconds, a batch of gc less than a second. A process that holds the lock for longer is stuck.
LOCK_SECONDS = 20.0
LOCK_PAUSE_SECONDS_MIN, LOCK_PAUSE_SECONDS_MAX = 0.001, 0.02

_FILE = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


class FolderLock:
    """The blob lock. It ends with its process, however the process ends."""

    def __init__(self, folder: Path) -> None:
        self._lock, self._gate = folder / "lock", folder / "tmp"
        self._this_thread = threading.local()
        # Threads of this process queue here, so that only one of them polls the file lock.
        self.turn = threading.Lock()
        _locks.add(self)

    @contextmanager
    def hold(self) -> Iterator[None]:
        if getattr(self._this_thread, "held", False):
            raise RuntimeError("this thread already holds lock() and would deadlock; do not nest it")
        until, turn = time.monotonic() + LOCK_SECONDS, self.turn
        if not turn.acquire(timeout=LOCK_SECONDS):
            raise _too_long()
        try:
            with ExitStack() as stack:
                with failing_as("cannot lock the blob folder"):
                    lock = stack.enter_context(_locking(self._lock, _FILE))
                    with _locking(self._gate, FOLDER_FLAGS | os.O_NOFOLLOW) as gate:
                        with suppress(OSError):  # network file systems may not be able to lock a folder
                            _lock_until(gate, until)
                        _lock_until(lock, until)
                self._this_thread.held = True
                try:
                    yield
                finally:
                    self._this_thread.held = False
        finally:
            turn.release()


@contextmanager
def _locking(path: Path, flags: int) -> Iterator[int]:
    """Open a file or folder for locking, and release its lock at the end."""
    descriptor = os.open(path, flags, 0o600)
    try:
        yield descriptor
    finally:
        # Unlock explicitly. Closing is not enough: a child that was forked meanwhile shares the lock, and keeps it.
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def _lock_until(descriptor: int, until: float) -> None:
    """Wait for the lock until the deadline: the holder may be frozen, and other threads queue behind this waiter."""
    pause = LOCK_PAUSE_SECONDS_MIN
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until:
                raise _too_long() from None
            time.sleep(pause)
            pause = min(pause * 2, LOCK_PAUSE_SECONDS_MAX)
        else:
            return


def _too_long() -> StoreUnavailable:
    return StoreUnavailable(f"the blob folder is still locked by another process or thread after {LOCK_SECONDS:g} s")


_locks: weakref.WeakSet[FolderLock] = weakref.WeakSet()


def _after_fork() -> None:
    for lock in list(_locks):
        lock.turn = threading.Lock()  # the child does not have the thread that held the old lock


at_fork(after_in_child=_after_fork)
