"""Blobs as files in a folder of one host: `sha256/ab/cd/<sha256>`.

A blob is linked to its name only after its bytes are on the disk, so a name never leads to a part of a blob. A put
returns only after the directory entry is on the disk too. Below the blob folder only plain folders and regular files
are opened: each folder is opened relative to its parent, and symbolic links are refused.

    sha256/      the blobs            tmp/          temporary files of uploads
    trash/       discarded blobs      quarantine/   damaged blobs
    lock         the file that `lock()` locks
    owner        the mark of the database that owns these blobs
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from onceward.core.log_event import log_event
from onceward.errors import InvalidInput, StoreUnavailable
from onceward.hub.blobs import CHUNK_BYTES, BlobMissing, Emptied, Stored, content_key
from onceward.hub.blobs.lock import FolderLock
from onceward.hub.blobs.temp_file import FOLDER_FLAGS, Swept, TempFile, TempFolder, failing_as, locked_file
from onceward.store.durable import sync

logger = logging.getLogger("onceward.blobs")

_KEY = re.compile(r"sha256/([0-9a-f]{2})/([0-9a-f]{2})/(\1\2[0-9a-f]{60})")
_PAIR = re.compile(r"[0-9a-f]{2}")
# `<sha256>.<seconds since 1970>.<random>`: the time is in the name, because a rename does not change a file's times.
_ASIDE = re.compile(r"[0-9a-f]{64}\.(\d+)\.[0-9a-f]+")

# Errors of file systems without hard links: FAT, some network and shared folders.
_NO_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})
# Another round is needed only if gc deletes the name right after it was checked.
_ROUNDS_MAX = 100
_OWNER = "owner"
# Without O_NONBLOCK, opening a planted named pipe would block.
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
OWNER_BYTES_MAX = 256


class FolderBlobs:
    """Blob store in a folder, which is created for this user alone if it does not exist."""

    backend: Final = "local_cas"

    def __init__(self, root: Path) -> None:
        self._root = root.absolute()
        # Inodes of folders whose own directory entries are known to be on the disk. That a folder exists does not prove
        # it: another writer may have created the folder and not have synced its parent yet.
        self._synced: set[int] = set()
        self._lock = FolderLock(self._root)
        with failing_as(f"cannot create the blob folder {root}"):
            _make_with_parents(self._root)
            for name in ("sha256", "tmp", "trash", "quarantine"):
                with self._opened(name, make=True):
                    pass
        self._temp_files = TempFolder(self._root / "tmp", durable=True)

    def ping(self) -> None:
        with failing_as("cannot open the blob folder"):
            for name in ("sha256", "tmp"):
                with self._opened(name):
                    pass

    def temp_file(self) -> TempFile:
        return self._temp_files.temp_file()

    def put(self, temp_file: TempFile, blob_id: str) -> str:  # noqa: ARG002  # a folder's key is the content alone
        temp_file.require_finished()
        key = content_key(temp_file.sha256)
        # Bytes that are there already may be damaged, perhaps without a row; damaged ones are replaced.
        self._place(temp_file, key, verify=True)
        return key

    def lock(self) -> AbstractContextManager[None]:
        return self._lock.hold()

    def lock_shared(self) -> AbstractContextManager[None]:
        return self._lock.share()

    def owner(self, mark: str) -> str:
        if owner := self._owner():
            return owner
        with self.lock():
            # Another process may have written the mark while this one waited.
            if owner := self._owner():
                return owner
            with failing_as("cannot record the owner of the blob folder"), self.temp_file() as temp_file:
                temp_file.write(mark.encode())
                temp_file.finish()
                with self._opened() as folder:
                    self._replace(temp_file, folder, _OWNER)
                    sync(folder)
        return mark

    def _owner(self) -> str:
        """Read the owner's mark; empty if there is none, or an empty file from an earlier version that was killed."""
        with failing_as("cannot read the owner of the blob folder"), self._opened() as folder:
            try:
                descriptor = os.open(_OWNER, _READ, dir_fd=folder)
            except FileNotFoundError:
                return ""
            try:
                owner = os.read(descriptor, OWNER_BYTES_MAX).decode("utf-8", "replace")
            finally:
                os.close(descriptor)
            # Its writer may have been killed before this step.
            sync(folder)
        return owner

    def ensure(self, temp_file: TempFile, blob_key: str, *, verify: bool = False) -> None:
        temp_file.require_finished()
        if blob_key != content_key(temp_file.sha256):
            raise InvalidInput("the key does not match the sha256 of these bytes")
        if temp_file.placed_as != blob_key or not self._leads_to(temp_file, blob_key):
            self._place(temp_file, blob_key, verify=verify)

    def _leads_to(self, temp_file: TempFile, key: str) -> bool:
        """Return whether the name still leads to this file, so that nothing has changed since it was linked and synced.

        One lstat of the whole path is enough: any path that leads to this inode leads to these bytes.
        """
        try:
            return os.lstat(f"{self._root}/{key}").st_ino == temp_file.inode
        except OSError:
            return False

    def size(self, blob_key: str) -> int | None:
        try:
            descriptor = self._open_blob(blob_key)
        except BlobMissing:
            return None
        try:
            return os.fstat(descriptor).st_size
        finally:
            os.close(descriptor)

    def read(self, blob_key: str, start: int = 0, end: int | None = None) -> Generator[bytes]:
        pieces = self._pieces(blob_key, start, end)
        next(pieces)
        return pieces

    def _pieces(self, blob_key: str, start: int, end: int | None) -> Generator[bytes]:
        descriptor = self._open_blob(blob_key)
        try:
            # `read` stops here: the file is open, and no piece has been requested yet.
            yield b""
            with failing_as(f"cannot read the blob {blob_key}"):
                while end is None or start < end:
                    count = CHUNK_BYTES if end is None else min(CHUNK_BYTES, end - start)
                    if not (piece := os.pread(descriptor, count, start)):
                        return
                    start += len(piece)
                    yield piece
        finally:
            os.close(descriptor)

    def discard(self, blob_key: str) -> None:
        """Move a blob to the trash. A crash before this is on the disk restores the name; gc then finds an orphan."""
        self._put_aside(blob_key, "trash")

    def quarantine(self, blob_key: str) -> None:
        self._put_aside(blob_key, "quarantine")

    def keys(self) -> Iterator[Stored]:
        """Yield all blobs in the order of their keys."""
        with failing_as("cannot list the blob folder"):
            with self._opened("sha256") as folder:
                firsts = _pairs(folder)
            for first in firsts:
                with self._opened("sha256", first) as folder:
                    seconds = _pairs(folder)
                for second in seconds:
                    with self._opened("sha256", first, second) as folder:
                        found = sorted(_blobs(folder, f"sha256/{first}/{second}/"), key=lambda blob: blob.key)
                    yield from found

    def sweep_temporary(self, older_than_seconds: float, *, dry_run: bool = False) -> Swept:
        return self._temp_files.sweep(older_than_seconds, dry_run=dry_run)

    def empty_trash(self, older_than_seconds: float) -> Emptied:
        removed = failed = 0
        first, limit = "", time.time() - older_than_seconds
        with failing_as("cannot empty the trash"), self._opened("trash") as trash, os.scandir(trash) as entries:
            for entry in entries:
                if not (named := _ASIDE.fullmatch(entry.name)) or int(named[1]) > limit:
                    continue
                try:
                    os.unlink(entry.name, dir_fd=trash)
                    removed += 1
                except FileNotFoundError:
                    # Another gc run deleted it.
                    continue
                except OSError as error:
                    # Also for entries that are not ours: a folder planted in place of a blob.
                    failed += 1
                    first = first or f"{self._root / 'trash' / entry.name}: {error.strerror}"
        if failed:
            log_event(
                logger.warning,
                "trash_removal_failed",
                failed_count=failed,
                first_failure=first,
                hint="these files still use disk space; remove them, or correct their permissions for the next gc",
            )
        return Emptied(removed, failed)

    @contextmanager
    def _opened(self, *names: str, make: bool = False) -> Iterator[int]:
        """Open a folder below the root. `make` creates it if needed, and brings its directory entry to the disk."""
        folder = os.open(self._root, FOLDER_FLAGS)
        try:
            for name in names:
                inner = self._inner(folder, name, make=make)
                os.close(folder)
                folder = inner
            yield folder
        finally:
            os.close(folder)

    def _inner(self, outer: int, name: str, *, make: bool) -> int:
        try:
            inner = os.open(name, FOLDER_FLAGS | os.O_NOFOLLOW, dir_fd=outer)
        except FileNotFoundError:
            if not make:
                raise
            _make_folder(name, outer)
            inner = os.open(name, FOLDER_FLAGS | os.O_NOFOLLOW, dir_fd=outer)
        if make:
            try:
                if (inode := os.fstat(inner).st_ino) not in self._synced:
                    sync(outer)
                    self._synced.add(inode)
            except BaseException:
                os.close(inner)
                raise
        return inner

    def _open_blob(self, blob_key: str) -> int:
        first, second, name = _parts(blob_key)
        with failing_as(f"cannot open the blob {blob_key}"):
            try:
                with self._opened("sha256", first, second) as folder:
                    descriptor = os.open(name, _READ, dir_fd=folder)
            except FileNotFoundError:
                raise BlobMissing(f"the blob {blob_key} does not exist") from None
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise StoreUnavailable(f"the blob {blob_key} is not a regular file")
        return descriptor

    def _place(self, temp_file: TempFile, key: str, *, verify: bool) -> None:
        """Make the name lead to these bytes. Both are on the disk when this returns."""
        first, second, name = _parts(key)
        with failing_as(f"cannot store the blob {key}"), self._opened("sha256", first, second, make=True) as folder:
            for _ in range(_ROUNDS_MAX):
                self._link(temp_file, folder, name)
                if self._is_whole(temp_file, folder, name, verify=verify):
                    break
                self._replace(temp_file, folder, name)
            else:
                raise StoreUnavailable(f"the blob {key} was deleted {_ROUNDS_MAX} times while it was being stored")
            # Also if another writer linked the name: it may not have synced the folder yet.
            sync(folder)
            temp_file.placed_as = key

    def _link(self, temp_file: TempFile, folder: int, name: str) -> None:
        """Link the file to the name, unless the name exists already."""
        try:
            os.link(temp_file.name, name, src_dir_fd=temp_file.folder, dst_dir_fd=folder, follow_symlinks=False)
        except FileExistsError:
            return
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            if not _exists(name, folder):
                self._replace(temp_file, folder, name)

    def _is_whole(self, temp_file: TempFile, folder: int, name: str, *, verify: bool) -> bool:
        try:
            found = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if not stat.S_ISREG(found.st_mode):
                raise StoreUnavailable(f"the blob {name} is not a regular file")
            if found.st_size != temp_file.size:
                return False
            if not verify or found.st_ino == temp_file.inode:
                return True
            with os.fdopen(os.open(name, _READ, dir_fd=folder), "rb") as blob:
                return hashlib.file_digest(blob, "sha256").hexdigest() == temp_file.sha256
        except FileNotFoundError:
            # Gc deleted it; the next round links it again.
            return False

    def _replace(self, temp_file: TempFile, folder: int, name: str) -> None:
        """Put these bytes under the name atomically, whatever is there."""
        with self._opened("tmp") as temporary:
            other = f"{secrets.token_hex(16)}.part"
            try:
                # A second name of the temporary file; the lock on the file protects both names from the sweep.
                os.link(temp_file.name, other, src_dir_fd=temporary, dst_dir_fd=temporary, follow_symlinks=False)
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                with _copied(temp_file, temporary) as copy:
                    os.rename(copy, name, src_dir_fd=temporary, dst_dir_fd=folder)
            else:
                os.rename(other, name, src_dir_fd=temporary, dst_dir_fd=folder)

    def _put_aside(self, blob_key: str, where: str) -> None:
        first, second, name = _parts(blob_key)
        aside = f"{name}.{int(time.time())}.{secrets.token_hex(4)}"
        with failing_as(f"cannot move the blob {blob_key} to {where}"):
            try:
                with self._opened("sha256", first, second) as source, self._opened(where) as target:
                    os.rename(name, aside, src_dir_fd=source, dst_dir_fd=target)
            except FileNotFoundError:
                return


def _parts(blob_key: str) -> tuple[str, str, str]:
    if not (named := _KEY.fullmatch(blob_key)):
        raise InvalidInput(f"{blob_key[:64]!r} is not a valid blob key for a folder")
    return named[1], named[2], named[3]


def _pairs(folder: int) -> list[str]:
    with os.scandir(folder) as entries:
        return sorted(
            entry.name for entry in entries if _PAIR.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False)
        )


def _blobs(folder: int, prefix: str) -> Iterator[Stored]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if not _KEY.fullmatch(prefix + entry.name):
                continue
            try:
                found = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            if stat.S_ISREG(found.st_mode):
                yield Stored(prefix + entry.name, found.st_size, datetime.fromtimestamp(found.st_mtime, UTC))


def _make_folder(name: str, outer: int) -> None:
    try:
        os.mkdir(name, 0o700, dir_fd=outer)
    except FileExistsError:
        return


def _exists(name: str, folder: int) -> bool:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


@contextmanager
def _copied(temp_file: TempFile, folder: int) -> Iterator[str]:
    """Copy the bytes to a second file that is locked and synced, for file systems without hard links."""
    name, target, _ = locked_file(folder)
    with os.fdopen(target, "wb") as copy, temp_file.path.open("rb") as source:
        shutil.copyfileobj(source, copy, CHUNK_BYTES)
        copy.flush()
        os.fchmod(copy.fileno(), 0o400)
        sync(copy.fileno())
        yield name


def _make_with_parents(path: Path) -> None:
    """Create the folder and its parents, and sync each directory entry, even if another process created it."""
    missing = [parent for parent in path.parents if not parent.exists()]
    for folder in (*reversed(missing), path):
        folder.mkdir(mode=0o700, exist_ok=True)
        outer = os.open(folder.parent, FOLDER_FLAGS)
        try:
            sync(outer)
        finally:
            os.close(outer)
