"""The guard of a blob folder: one holder at a time, among all threads and processes of the host.

Whoever has locked the file `lock` has the guard. Whoever waits for it has locked the folder `tmp` meanwhile, which is
the gate: a busy process takes the lock again as soon as it has let go of it, and would keep everybody else waiting.
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

from onceward.blobs.spool import FOLDER_FLAGS, failing_as
from onceward.errors import StoreUnavailable
from onceward.store.forks import at_fork

# A commit takes milliseconds, a batch of the collection less than a second. Whoever holds the lock for longer is stuck.
GUARD_SECONDS = 20.0
GUARD_PAUSE_SECONDS_MIN, GUARD_PAUSE_SECONDS_MAX = 0.001, 0.02

_FILE = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


class FolderGuard:
    """It ends with its process, however that ends."""

    def __init__(self, folder: Path) -> None:
        self._lock, self._gate = folder / "lock", folder / "tmp"
        self._mine = threading.local()
        # Threads of this process queue here, so that only one of them looks again and again whether another let go.
        self.turn = threading.Lock()
        _guards.add(self)

    @contextmanager
    def held(self) -> Iterator[None]:
        if getattr(self._mine, "held", False):
            raise RuntimeError("this thread is inside guarded() already and would wait for itself")
        until, turn = time.monotonic() + GUARD_SECONDS, self.turn
        if not turn.acquire(timeout=GUARD_SECONDS):
            raise _too_long()
        try:
            with ExitStack() as stack:
                with failing_as("the blob folder cannot be locked"):
                    lock = stack.enter_context(_locking(self._lock, _FILE))
                    with _locking(self._gate, FOLDER_FLAGS | os.O_NOFOLLOW) as gate:
                        with suppress(OSError):  # on a disk of another host a folder may have no lock
                            _lock_soon(gate, until)
                        _lock_soon(lock, until)
                self._mine.held = True
                try:
                    yield
                finally:
                    self._mine.held = False
        finally:
            turn.release()


@contextmanager
def _locking(path: Path, flags: int) -> Iterator[int]:
    """Opened, and without a lock at the end."""
    descriptor = os.open(path, flags, 0o600)
    try:
        yield descriptor
    finally:
        # Said and not left to closing: a child forked meanwhile shares the lock and may live long.
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def _lock_soon(descriptor: int, until: float) -> None:
    """Wait for the lock, but not for ever: its holder may be frozen, and whoever waits holds up others in turn."""
    pause = GUARD_PAUSE_SECONDS_MIN
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until:
                raise _too_long() from None
            time.sleep(pause)
            pause = min(pause * 2, GUARD_PAUSE_SECONDS_MAX)
        else:
            return


def _too_long() -> StoreUnavailable:
    return StoreUnavailable("the blob folder is locked by somebody else for too long")


_guards: weakref.WeakSet[FolderGuard] = weakref.WeakSet()


def _after_fork() -> None:
    for guard in list(_guards):
        guard.turn = threading.Lock()  # the thread that held it is not in the child


at_fork(after_in_child=_after_fork)
