"""File locks with a deadline (`flock`), which end with their process however it ends."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

# Pauses between two attempts: the holder is about to finish, or has been at it for a while.
PAUSE_SECONDS_MIN, PAUSE_SECONDS_MAX = 0.0005, 0.02

LOCK_FILE_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def opened_for_locking(path: Path, flags: int = LOCK_FILE_FLAGS) -> Iterator[int]:
    """Open a file or folder for locking, and release its lock at the end."""
    descriptor = os.open(path, flags, 0o600)
    try:
        yield descriptor
    finally:
        # Unlock explicitly, because closing may not: a child forked meanwhile shares the lock and may live long.
        unlock(descriptor)
        os.close(descriptor)


def lock_by(descriptor: int, deadline: float, *, shared: bool = False) -> bool:
    """Lock the file; False if it is still locked at the deadline (`time.monotonic`).

    The lock is polled: a blocking call could not be ended, and the holder may be frozen.
    """
    mode = (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB
    return poll(lambda: fcntl.flock(descriptor, mode), deadline)


def poll(lock: Callable[[], None], deadline: float) -> bool:
    """Call `lock` until it does not raise `BlockingIOError` any more; False if it still does at the deadline."""
    pause = PAUSE_SECONDS_MIN
    while True:
        try:
            lock()
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(pause)
            pause = min(pause * 2, PAUSE_SECONDS_MAX)
        else:
            return True


def unlock(descriptor: int) -> None:
    with suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_UN)
