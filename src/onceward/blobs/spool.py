"""A temporary file that is hashed while it is written, and the folder of such files.

Every living spool holds a lock on its file, which ends with its process. So the sweeper knows the dead from the slow:
it removes a file only once it has that lock itself.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from onceward.errors import StoreUnavailable

# Smaller pieces are gathered up to this; larger ones are written as they are, without a copy.
GATHER_BYTES = 128 * 1024

FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_NEW_FILE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Spool:
    """Made by a store's `spool()`. `sha256` and `size` are those of what was written so far; `folder` is open, and has
    its name.
    """

    def __init__(self, folder: Path, *, durable: bool) -> None:
        self._durable = durable
        self._hash = hashlib.sha256()
        self._gathered = bytearray()
        self._usable = True
        self.finished = False
        self.size = 0
        # The key under which a folder has these bytes, with the name on the disk.
        self.placed_as = ""
        with failing_as(f"no temporary file can be made in {folder}"):
            self.folder = os.open(folder, FOLDER_FLAGS | os.O_NOFOLLOW)
            try:
                self.name, self.descriptor, self.inode = _locked_file(self.folder)
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
            raise ValueError("a finished spool takes no more bytes")
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
        """Nothing more comes. Where the file itself is to stay, its bytes are on the disk when this returns."""
        self._require_usable()
        if self.finished:
            return
        self._flush()
        with self._fatal("the temporary file cannot be brought to the disk"):
            os.fchmod(self.descriptor, 0o400)
            if self._durable:
                os.fsync(self.descriptor)
        self.finished = True

    def require_finished(self) -> None:
        self._require_usable()
        if not self.finished:
            raise ValueError("finish the spool before it is put")

    def close(self) -> None:
        """Take the temporary name away and let go of the file. A blob that was linked from it stays."""
        if self.folder < 0:
            return
        self._usable = False
        self._gathered.clear()
        with suppress(OSError):
            # What cannot be removed now is the sweeper's: nobody holds its lock any more.
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
            # A new one: whoever still looks at the old one, a traceback for instance, would forbid to shrink it.
            self._gathered = bytearray()

    def _write_out(self, data: bytes | bytearray | memoryview) -> None:
        with self._fatal("the temporary file cannot be written"):
            written = os.write(self.descriptor, data)
            while written < len(data):
                written += os.write(self.descriptor, memoryview(data)[written:])

    @contextmanager
    def _fatal(self, what: str) -> Iterator[None]:
        """After a failure the file may lack bytes, and a second fsync may say yes although the first said no."""
        try:
            with failing_as(what):
                yield
        except BaseException:
            self._usable = False
            raise

    def _require_usable(self) -> None:
        if not self._usable:
            raise StoreUnavailable("this temporary file failed or was closed; write the bytes into a new one")


class SpoolFolder:
    """A folder of temporary files. It is made, for its owner alone, when it is not there."""

    def __init__(self, path: Path, *, durable: bool) -> None:
        self.path = path
        self._durable = durable
        with failing_as(f"the folder for temporary files cannot be made at {path}"):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)

    def spool(self) -> Spool:
        return Spool(self.path, durable=self._durable)

    def sweep(self, older_than_seconds: float) -> int:
        """Remove the files of writers that are gone, last written that long ago; gives how many."""
        limit = time.time() - older_than_seconds
        with failing_as(f"the temporary files in {self.path} cannot be swept"):
            folder = os.open(self.path, FOLDER_FLAGS | os.O_NOFOLLOW)
            try:
                with os.scandir(folder) as entries:
                    removed = sum(_remove_if_dead(entry.name, folder, limit) for entry in entries)
            finally:
                os.close(folder)
        return removed


@contextmanager
def failing_as(what: str) -> Iterator[None]:
    """A failure of the operating system inside is `StoreUnavailable`, and says what could not be done."""
    try:
        yield
    except OSError as error:
        raise StoreUnavailable(f"{what}: {error.strerror or error}") from error


def _locked_file(folder: int) -> tuple[str, int, int]:
    """Its name, descriptor and inode."""
    while True:
        name = f"{secrets.token_hex(16)}.part"
        descriptor = os.open(name, _NEW_FILE, 0o600, dir_fd=folder)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            # The sweeper may have found the file before it was locked.
            found = os.fstat(descriptor)
            if found.st_nlink:
                return name, descriptor, found.st_ino
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _remove_if_dead(name: str, folder: int, written_before: float) -> bool:
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except OSError:
        # Gone meanwhile, or nothing that we made: a link, a socket.
        return False
    try:
        if os.fstat(descriptor).st_mtime > written_before:
            return False
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.unlink(name, dir_fd=folder)
    except (BlockingIOError, FileNotFoundError, IsADirectoryError):
        return False
    finally:
        os.close(descriptor)
    return True
