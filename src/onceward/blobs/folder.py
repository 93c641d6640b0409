"""Blobs as files in a folder of one host: `sha256/ab/cd/<sha256>`.

A blob is linked to its name only after its bytes are on the disk, so a name never leads to a part of a blob, and it is
acknowledged only after the folder that holds the name is on the disk too. Below the blob folder nothing but plain
folders and regular files is followed: every step is opened relative to the one before it, and links are refused.

    sha256/      the blobs            tmp/          what is being written
    trash/       discarded blobs      quarantine/   damaged blobs
    lock         `guarded()` locks this file
    owner        the mark of whose blobs these are
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

from onceward.blobs import CHUNK_BYTES, BlobMissing, Emptied, Stored, content_key
from onceward.blobs.guard import FolderGuard
from onceward.blobs.spool import FOLDER_FLAGS, Spool, SpoolFolder, failing_as
from onceward.errors import InvalidInput, StoreUnavailable

logger = logging.getLogger("onceward.blobs")

_KEY = re.compile(r"sha256/([0-9a-f]{2})/([0-9a-f]{2})/(\1\2[0-9a-f]{60})")
_PAIR = re.compile(r"[0-9a-f]{2}")
# `<sha256>.<seconds since 1970>.<random>`: renaming a file leaves its own times as they were.
_ASIDE = re.compile(r"[0-9a-f]{64}\.(\d+)\.[0-9a-f]+")

# What file systems say that have no links: FAT, some network and shared folders.
_NO_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})
# Each further round needs a collector that takes the name away right after we saw it.
_ROUNDS_MAX = 100
_OWNER = "owner"
# Without O_NONBLOCK a planted pipe would be waited for.
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
OWNER_BYTES_MAX = 256


class FolderBlobs:
    """The folder is made, for its owner alone, when it is not there."""

    backend: Final = "local_cas"

    def __init__(self, root: Path) -> None:
        self._root = root.absolute()
        # Inodes of folders whose own names are known to be on the disk. Another writer may have made a folder and not
        # have got as far as that, so having found it is no proof.
        self._settled: set[int] = set()
        self._guard = FolderGuard(self._root)
        with failing_as(f"the blob folder {root} cannot be made"):
            _make_with_parents(self._root)
            for name in ("sha256", "tmp", "trash", "quarantine"):
                with self._opened(name, make=True):
                    pass
        self._spools = SpoolFolder(self._root / "tmp", durable=True)

    def look(self) -> None:
        with failing_as("the blob folder cannot be opened"):
            for name in ("sha256", "tmp"):
                with self._opened(name):
                    pass

    def spool(self) -> Spool:
        return self._spools.spool()

    def put(self, spool: Spool, blob_id: str) -> str:  # noqa: ARG002  # a folder's key is the content alone
        spool.require_finished()
        key = content_key(spool.sha256)
        # What lies there already may be damaged, and no row may know of it; such a one is replaced.
        self._place(spool, key, verify=True)
        return key

    def guarded(self) -> AbstractContextManager[None]:
        return self._guard.held()

    def owner(self, mark: str) -> str:
        if owner := self._owner():
            return owner
        with self.guarded():
            # Another may have come first while we waited.
            if owner := self._owner():
                return owner
            with failing_as("the owner of the blob folder cannot be kept"), self.spool() as spool:
                spool.write(mark.encode())
                spool.finish()
                with self._opened() as folder:
                    self._replace(spool, folder, _OWNER)
                    os.fsync(folder)
        return mark

    def _owner(self) -> str:
        """Empty when there is none yet, or only an empty file: an earlier version was killed before it wrote to it."""
        with failing_as("the owner of the blob folder cannot be read"), self._opened() as folder:
            try:
                descriptor = os.open(_OWNER, _READ, dir_fd=folder)
            except FileNotFoundError:
                return ""
            try:
                owner = os.read(descriptor, OWNER_BYTES_MAX).decode("utf-8", "replace")
            finally:
                os.close(descriptor)
            # Whoever wrote it may not have come as far as this.
            os.fsync(folder)
        return owner

    def ensure(self, spool: Spool, blob_key: str, *, verify: bool = False) -> None:
        spool.require_finished()
        if blob_key != content_key(spool.sha256):
            raise InvalidInput("these bytes do not belong under this key")
        if spool.placed_as != blob_key or not self._leads_to(spool, blob_key):
            self._place(spool, blob_key, verify=verify)

    def _leads_to(self, spool: Spool, key: str) -> bool:
        """Whether the name is still that of this very file: then nobody has touched it since it was linked and synced.

        By its whole path, in one step: what leads to this file, by whatever way, leads to these bytes.
        """
        try:
            return os.lstat(f"{self._root}/{key}").st_ino == spool.inode
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
            # Opened, and waiting to be asked for the first piece.
            yield b""
            with failing_as(f"the blob {blob_key} cannot be read"):
                while end is None or start < end:
                    count = CHUNK_BYTES if end is None else min(CHUNK_BYTES, end - start)
                    if not (piece := os.pread(descriptor, count, start)):
                        return
                    start += len(piece)
                    yield piece
        finally:
            os.close(descriptor)

    def discard(self, blob_key: str) -> None:
        """A crash before the disk has heard of it brings the name back, without a row: the sweep takes it again."""
        self._put_aside(blob_key, "trash")

    def quarantine(self, blob_key: str) -> None:
        self._put_aside(blob_key, "quarantine")

    def keys(self) -> Iterator[Stored]:
        """In the order of their keys."""
        with failing_as("the blob folder cannot be listed"):
            with self._opened("sha256") as folder:
                firsts = _pairs(folder)
            for first in firsts:
                with self._opened("sha256", first) as folder:
                    seconds = _pairs(folder)
                for second in seconds:
                    with self._opened("sha256", first, second) as folder:
                        found = sorted(_blobs(folder, f"sha256/{first}/{second}/"), key=lambda blob: blob.key)
                    yield from found

    def sweep_temporary(self, older_than_seconds: float) -> int:
        return self._spools.sweep(older_than_seconds)

    def empty_trash(self, older_than_seconds: float) -> Emptied:
        removed = failed = 0
        first, limit = "", time.time() - older_than_seconds
        with failing_as("the trash cannot be emptied"), self._opened("trash") as trash, os.scandir(trash) as entries:
            for entry in entries:
                if not (named := _ASIDE.fullmatch(entry.name)) or int(named[1]) > limit:
                    continue
                try:
                    os.unlink(entry.name, dir_fd=trash)
                    removed += 1
                except FileNotFoundError:
                    # Another collector was here.
                    continue
                except OSError as error:
                    # Also what we never made: a folder, planted in place of a blob.
                    failed += 1
                    first = first or f"{self._root / 'trash' / entry.name}: {error.strerror}"
        if failed:
            logger.warning(
                "%d in the trash of the blobs cannot be removed and take their room; first %s", failed, first
            )
        return Emptied(removed, failed)

    @contextmanager
    def _opened(self, *names: str, make: bool = False) -> Iterator[int]:
        """A folder below the root. With `make` it is there, and its name is on the disk, when this begins."""
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
                if (inode := os.fstat(inner).st_ino) not in self._settled:
                    os.fsync(outer)
                    self._settled.add(inode)
            except BaseException:
                os.close(inner)
                raise
        return inner

    def _open_blob(self, blob_key: str) -> int:
        first, second, name = _parts(blob_key)
        with failing_as(f"the blob {blob_key} cannot be opened"):
            try:
                with self._opened("sha256", first, second) as folder:
                    descriptor = os.open(name, _READ, dir_fd=folder)
            except FileNotFoundError:
                raise BlobMissing(f"there are no bytes under {blob_key}") from None
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise StoreUnavailable(f"the blob {blob_key} is not a regular file")
        return descriptor

    def _place(self, spool: Spool, key: str, *, verify: bool) -> None:
        """When this returns the name leads to these bytes, and both are on the disk."""
        first, second, name = _parts(key)
        with failing_as(f"the blob {key} cannot be kept"), self._opened("sha256", first, second, make=True) as folder:
            for _ in range(_ROUNDS_MAX):
                self._link(spool, folder, name)
                if self._is_whole(spool, folder, name, verify=verify):
                    break
                self._replace(spool, folder, name)
            else:
                raise StoreUnavailable(f"the blob {key} is taken away again and again")
            # Also when another writer linked the name: it may not have come as far as this.
            os.fsync(folder)
            spool.placed_as = key

    def _link(self, spool: Spool, folder: int, name: str) -> None:
        """After this there is something under the name, ours or another's."""
        try:
            os.link(spool.name, name, src_dir_fd=spool.folder, dst_dir_fd=folder, follow_symlinks=False)
        except FileExistsError:
            return
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            if not _exists(name, folder):
                self._replace(spool, folder, name)

    def _is_whole(self, spool: Spool, folder: int, name: str, *, verify: bool) -> bool:
        try:
            found = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if not stat.S_ISREG(found.st_mode):
                raise StoreUnavailable(f"the blob {name} is not a regular file")
            if found.st_size != spool.size:
                return False
            if not verify or found.st_ino == spool.inode:
                return True
            with os.fdopen(os.open(name, _READ, dir_fd=folder), "rb") as blob:
                return hashlib.file_digest(blob, "sha256").hexdigest() == spool.sha256
        except FileNotFoundError:
            # A collector was here; the next round links it again.
            return False

    def _replace(self, spool: Spool, folder: int, name: str) -> None:
        """Put these bytes under the name in one step, whatever was there."""
        with self._opened("tmp") as temporary:
            other = f"{secrets.token_hex(16)}.part"
            try:
                os.link(spool.name, other, src_dir_fd=temporary, dst_dir_fd=temporary, follow_symlinks=False)
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                _copy(spool, other, temporary)
            os.rename(other, name, src_dir_fd=temporary, dst_dir_fd=folder)

    def _put_aside(self, blob_key: str, where: str) -> None:
        first, second, name = _parts(blob_key)
        aside = f"{name}.{int(time.time())}.{secrets.token_hex(4)}"
        with failing_as(f"the blob {blob_key} cannot be moved to the {where}"):
            try:
                with self._opened("sha256", first, second) as source, self._opened(where) as target:
                    os.rename(name, aside, src_dir_fd=source, dst_dir_fd=target)
            except FileNotFoundError:
                return


def _parts(blob_key: str) -> tuple[str, str, str]:
    if not (named := _KEY.fullmatch(blob_key)):
        raise InvalidInput("this is not the key of a blob in a folder")
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


def _copy(spool: Spool, name: str, folder: int) -> None:
    """Where there are no links: the same bytes a second time, on the disk."""
    target = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder)
    with os.fdopen(target, "wb") as copy, spool.path.open("rb") as source:
        shutil.copyfileobj(source, copy, CHUNK_BYTES)
        copy.flush()
        os.fchmod(copy.fileno(), 0o400)
        os.fsync(copy.fileno())


def _make_with_parents(path: Path) -> None:
    """Each new folder's name is on the disk before this returns; also that of one which another has just made."""
    missing = [parent for parent in path.parents if not parent.exists()]
    for folder in (*reversed(missing), path):
        folder.mkdir(mode=0o700, exist_ok=True)
        outer = os.open(folder.parent, FOLDER_FLAGS)
        try:
            os.fsync(outer)
        finally:
            os.close(outer)
