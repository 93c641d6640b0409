"""Temporary files that are hashed while they are written, and the folder that holds them.

Every writer holds a lock on its file, which ends with its process. The sweep removes a file only while it holds that
lock itself, so it can tell dead writers from slow ones.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import logging
import os
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from onceward.core.log_event import log_event
from onceward.errors import StoreMisconfigured, StoreUnavailable
from onceward.store.durable import sync

logger = logging.getLogger("onceward.blobs")

# Smaller pieces are buffered up to this size; larger ones are written directly, without a copy.
GATHER_BYTES = 128 * 1024

# Errors that neither more disk space nor a retry corrects.
_PERMANENT = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_NEW_FILE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class TempFile:
    """A temporary file, created by a store's `temp_file()`.

    `sha256` and `size` cover the bytes written so far. `folder` is the open descriptor of the folder that contains it.
    """

    def __init__(self, folder: Path, *, durable: bool) -> None:
        self._durable = durable
        self._hash = hashlib.sha256()
        self._gathered = bytearray()
        self._usable = True
        self.finished = False
        self.size = 0
        # The key under which a blob folder has stored these bytes durably.
        self.placed_as = ""
        with failing_as(f"cannot create a temporary file in {folder}"):
            self.folder = os.open(folder, FOLDER_FLAGS | os.O_NOFOLLOW)
            try:
                self.name, self.descriptor, self.inode = locked_file(self.folder)
            except BaseException:
                os.close(self.folder)
                raise
        self.path = folder / self.name

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()

    def write(self, data: bytes | memoryview) -> None:
        self._require_usable()
        if self.finished:
            raise ValueError("the temporary file is finished and takes no more bytes")
        self._hash.update(data)
        self.size += len(data)
        if len(data) < GATHER_BYTES:
            self._gathered += data
            if len(self._gathered) >= GATHER_BYTES:
                self._flush()
            return
        self._flush()
        self._write_out(data)

    def finish(self) -> None:
        """End writing. If the file itself becomes the blob, its bytes are on the disk when this returns."""
        self._require_usable()
        if self.finished:
            return
        self._flush()
        with self._fatal("cannot sync the temporary file to the disk"):
            os.fchmod(self.descriptor, 0o400)
            if self._durable:
                sync(self.descriptor)
        self.finished = True

    def require_finished(self) -> None:
        self._require_usable()
        if not self.finished:
            raise ValueError("the temporary file is not finished; call finish() before it is stored")

    def close(self) -> None:
        """Remove the temporary name and close the file. A blob that was linked from it stays."""
        if self.folder < 0:
            return
        self._usable = False
        self._gathered.clear()
        with suppress(OSError):
            # If this fails, the sweep removes the file later: nothing holds its lock any more.
            os.unlink(self.name, dir_fd=self.folder)
        os.close(self.descriptor)
        os.close(self.folder)
        self.folder = self.descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _flush(self) -> None:
        if self._gathered:
            self._write_out(self._gathered)
            # Replaced, not cleared: a bytearray cannot be resized while a view of it exists, such as in a traceback.
            self._gathered = bytearray()

    def _write_out(self, data: bytes | bytearray | memoryview) -> None:
        with self._fatal("cannot write the temporary file"):
            written = os.write(self.descriptor, data)
            while written < len(data):
                written += os.write(self.descriptor, memoryview(data)[written:])

    @contextmanager
    def _fatal(self, what: str) -> Iterator[None]:
        """Make the file unusable on failure: bytes may be missing, and a retried fsync may succeed wrongly."""
        try:
            with failing_as(what):
                yield
        except BaseException:
            self._usable = False
            raise

    def _require_usable(self) -> None:
        if not self._usable:
            raise StoreUnavailable("this temporary file failed or was closed; write the bytes into a new one")


@dataclass(frozen=True, slots=True)
class Swept:
    """Counts of one sweep of temporary files.

    A file is an orphan if it was the only name of its bytes; only then is disk space reclaimed. An upload that was
    killed near its end may have linked its file to a second name, that of the blob.
    """

    removed_count: int = 0
    orphan_count: int = 0
    orphan_bytes: int = 0
    failed_count: int = 0


class TempFolder:
    """A folder of temporary files, which is created for this user alone if it does not exist."""

    def __init__(self, path: Path, *, durable: bool) -> None:
        self.path = path
        self._durable = durable
        with failing_as(f"cannot create the folder for temporary files {path}"):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)

    def temp_file(self) -> TempFile:
        return TempFile(self.path, durable=self._durable)

    def sweep(self, older_than_seconds: float, *, dry_run: bool = False) -> Swept:
        """Remove files of dead writers that were last written before this time. A dry run only counts them.

        A file that cannot be removed is counted and logged, and does not stop the sweep.
        """
        limit = time.time() - older_than_seconds
        removed = orphans = size = failed = 0
        first = ""
        with failing_as(f"cannot sweep the temporary files in {self.path}"):
            folder = os.open(self.path, FOLDER_FLAGS | os.O_NOFOLLOW)
            try:
                with os.scandir(folder) as entries:
                    names = [entry.name for entry in entries]
                for name in names:
                    try:
                        found = _remove_if_dead(name, folder, limit, dry_run=dry_run)
                    except OSError as error:
                        failed += 1
                        first = first or f"{self.path / name}: {error.strerror}"
                        continue
                    if found is not None:
                        removed += 1
                        is_orphan = found.st_nlink == 1
                        orphans += is_orphan
                        size += found.st_size * is_orphan
            finally:
                os.close(folder)
        if failed:
            log_event(
                logger.warning,
                "temp_file_removal_failed",
                failed_count=failed,
                first_failure=first,
                hint="these files still use disk space; remove them, or correct their permissions for the next gc",
            )
        return Swept(removed, orphans, size, failed)


@contextmanager
def failing_as(what: str) -> Iterator[None]:
    """Translate an `OSError` in the block into `StoreUnavailable`, with a message that says what failed."""
    try:
        yield
    except OSError as error:
        message = f"{what}: {type(error).__name__}: {error.strerror or error}"
        if error.errno in _PERMANENT:
            raise StoreMisconfigured(f"{message}; give this user write access to the folder") from error
        raise StoreUnavailable(message) from error


def locked_file(folder: int) -> tuple[str, int, int]:
    """Create a temporary file that no sweep removes while it is open; return its name, descriptor and inode."""
    while True:
        name = f"{secrets.token_hex(16)}.part"
        descriptor = os.open(name, _NEW_FILE, 0o600, dir_fd=folder)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            # The sweep may have removed the file before it was locked.
            found = os.fstat(descriptor)
            if found.st_nlink:
                return name, descriptor, found.st_ino
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _remove_if_dead(name: str, folder: int, written_before: float, *, dry_run: bool) -> os.stat_result | None:
    """Remove the file of a dead writer and return its stat; None if it stays. A dry run removes nothing."""
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except OSError:
        # The file is gone, or is not one of ours: a link, a socket.
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Read under the lock: before that, the writer may still have written to the file, or linked it.
        found = os.fstat(descriptor)
        if found.st_mtime > written_before or not stat.S_ISREG(found.st_mode) or not found.st_nlink:
            return None
        if not dry_run:
            os.unlink(name, dir_fd=folder)
    except (BlockingIOError, FileNotFoundError):
        return None
    finally:
        os.close(descriptor)
    return found
