"""Blob lock of a folder, among all threads and processes of the host: either one exclusive holder, or shared ones.

The holders have locked the file `lock`. Each waits for it while it holds a lock on the folder `tmp`, the gate. Without
the gate, a busy process could take the lock again right after releasing it, and starve the others.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from onceward.errors import StoreUnavailable
from onceward.hub.blobs.temp_file import FOLDER_FLAGS, failing_as
from onceward.hub.file_lock import lock_by, opened_for_locking
from onceward.store.forks import at_fork

# A commit takes milliseconds, a batch of gc less than a second. A process that holds the lock for longer is stuck.
LOCK_SECONDS = 20.0


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
        """Hold the lock exclusively."""
        until, turn = self._deadline(), self.turn
        if not turn.acquire(timeout=LOCK_SECONDS):
            raise _too_long()
        try:
            with self._locked(until, shared=False):
                yield
        finally:
            turn.release()

    @contextmanager
    def share(self) -> Iterator[None]:
        """Hold the lock together with others that share it."""
        with self._locked(self._deadline(), shared=True):
            yield

    def _deadline(self) -> float:
        if getattr(self._this_thread, "held", False):
            raise RuntimeError("this thread already holds lock() and would deadlock; do not nest it")
        return time.monotonic() + LOCK_SECONDS

    @contextmanager
    def _locked(self, until: float, *, shared: bool) -> Iterator[None]:
        with ExitStack() as stack:
            with failing_as("cannot lock the blob folder"):
                lock = stack.enter_context(opened_for_locking(self._lock))
                with opened_for_locking(self._gate, FOLDER_FLAGS | os.O_NOFOLLOW) as gate:
                    with suppress(OSError):  # network file systems may not be able to lock a folder
                        _lock_until(gate, until)
                    _lock_until(lock, until, shared=shared)
            self._this_thread.held = True
            try:
                yield
            finally:
                self._this_thread.held = False


def _lock_until(descriptor: int, until: float, *, shared: bool = False) -> None:
    """Wait for the lock with a deadline: its holder may be frozen, and a waiter makes others wait too."""
    if not lock_by(descriptor, until, shared=shared):
        raise _too_long()


def _too_long() -> StoreUnavailable:
    return StoreUnavailable(f"the blob folder is still locked by another process or thread after {LOCK_SECONDS:g} s")


_locks: weakref.WeakSet[FolderLock] = weakref.WeakSet()


def _after_fork() -> None:
    for lock in list(_locks):
        lock.turn = threading.Lock()  # the child does not have the thread that held the old lock


at_fork(after_in_child=_after_fork)
