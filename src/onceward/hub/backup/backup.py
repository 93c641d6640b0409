"""Backup of a hub on SQLite, while it runs.

THE ORDER OF COPIES. A request claims its key in the ledger, stores bytes, commits rows that name them, and settles its
claim. The backup therefore fixes its view of the ledger first and of the rows second: every request that the ledger
calls completed has its rows. The other way round, a retry would get the recorded success of a row that is not there.
Bytes are stored before their row and deleted after it, so they are copied after the rows are fixed. In detail:

    1. Copy blobs that rows name now, without any lock. This takes the time.
    2. Take the blob lock, shared, which keeps gc out. Open a read transaction on the ledger, then one on the database.
       Copy the blobs that the rows of that transaction name and step 1 did not copy: those of the last moments. Release
       the lock. Gc and uploads wait only for this step.
    3. Copy both files with SQLite's backup API out of these two transactions, while writers continue.
    4. Check and sync everything, and write the manifest.

A process that is killed leaves a folder without a manifest, which `restore` refuses.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TypeAlias
from urllib.parse import quote, unquote, urlsplit

from onceward.errors import AlreadyThere, InvalidConfig, NotFound, OncewardError, StoreUnavailable
from onceward.hub.backup.manifest import (
    BLOBS,
    DATABASE,
    FORMAT,
    LEDGER,
    CopiedBlobs,
    CopiedFile,
    Manifest,
    file_digest,
    is_empty_or_missing,
    keys_digest,
    make_parents,
    private_file,
    sync_tree,
    write_manifest,
)
from onceward.hub.blobs import BlobStore
from onceward.hub.blobs.folder import FolderBlobs
from onceward.hub.blobs.open import open_blobs
from onceward.hub.config.config import Config
from onceward.hub.db.timestamps import time_text
from onceward.store.durable import sync
from onceward.store.sqlite.errors import failure_of

# Takes the number of bytes done, and the total.
Progress: TypeAlias = Callable[[int, int | None], object]

# Step 1 is repeated until less than this is left for step 2. A disk copies it in well under a second.
_LOCKED_BYTES_MAX = 16 * 1024 * 1024
_ROUNDS_MAX = 10
# 8 MiB at SQLite's usual page size: progress every few milliseconds.
_PAGES_PER_STEP = 2048
# How long the backup waits for a lock of SQLite, which a running hub holds only while it opens or recovers a file.
_BUSY_SECONDS = 30.0

_NAMED_BY_BLOBS = "SELECT blob_key, sha256, size_bytes, storage_backend FROM blobs"
_NAMED_BY_ARTIFACTS = (
    f"SELECT blob_key, blob_sha256, 0, '{FolderBlobs.backend}' FROM artifacts WHERE blob_key IS NOT NULL"  # noqa: S608  # a constant
)


@dataclass(frozen=True, slots=True)
class _BlobRow:
    """A blob that a row names. `size` is 0 if the row does not have it."""

    key: str
    sha256: str
    size: int
    backend: str


def back_up(config: Config, folder: Path, progress: Progress = lambda _done, _total: None) -> Manifest:
    """Copy the data of a hub, running or not, into a new or empty folder.

    Args:
        config: The configuration of the hub.
        folder: The folder for the backup. It is created if it does not exist.
        progress: Called with the number of bytes done and the total.

    Returns:
        The manifest of the backup.

    Raises:
        InvalidConfig: The hub's data is not on SQLite and in a folder.
        NotFound: The data folder does not contain the files of a hub.
        AlreadyThere: The folder is not empty.
        StoreUnavailable: The data cannot be read, or the backup cannot be written. The partial copy is removed.
    """
    database, ledger = sqlite_file(config.database_url, "database"), sqlite_file(config.ledger_url, "ledger")
    if not config.blobs_url.startswith("file:"):
        raise InvalidConfig(f"hub.blobs: {_only_local('blobs', config.blobs_url)}")
    for file in (database, ledger):
        if not file.is_file():
            raise NotFound(f"the file {str(file)!r} does not exist; give the hub's folder with --data-dir")
    if not is_empty_or_missing(folder):
        raise AlreadyThere(f"{str(folder)!r} is not empty; a backup needs a new or empty folder")
    blobs = open_blobs(config.blobs_url)
    with _new_folder(folder), _failures():
        return _Backup(folder, database, ledger, blobs, progress).run()


def sqlite_file(url: str, what: str) -> Path:
    """Return the path in an SQLite URL, or raise `InvalidConfig`."""
    if not url.startswith("sqlite:"):
        raise InvalidConfig(f"hub.{what}: {_only_local(what, url)}")
    return Path(unquote(urlsplit(url).path)[1:])


def _only_local(what: str, url: str) -> str:
    return (
        f"the {what} of this hub is at {url.partition(':')[0]}:, and a backup copies SQLite files and a folder of blobs."
        " Use the tools of that server, such as pg_dump"
    )


@contextlib.contextmanager
def _new_folder(folder: Path) -> Iterator[None]:
    """Create the folder, and remove what was written if the block raises."""
    is_new = not folder.exists()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        for place in folder.iterdir():
            if place.is_dir():
                shutil.rmtree(place, ignore_errors=True)
            else:
                place.unlink(missing_ok=True)
        if is_new:
            with contextlib.suppress(OSError):
                folder.rmdir()
        raise


@contextlib.contextmanager
def _failures() -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise StoreUnavailable(f"the backup failed: {error}") from error
    except OSError as error:
        raise StoreUnavailable(f"the backup failed: {error.filename or 'cannot write'}: {error.strerror}") from error


class _Backup:
    """One backup into an empty folder."""

    def __init__(self, folder: Path, database: Path, ledger: Path, blobs: BlobStore, progress: Progress) -> None:
        self._folder = folder
        self._database, self._ledger, self._blobs = database, ledger, blobs
        self._progress = progress
        self._done = 0
        self._total = database.stat().st_size + ledger.stat().st_size
        # Sizes of the copied blobs by key, and what was wrong with those that could not be copied.
        self._copied: dict[str, int] = {}
        self._damaged: dict[str, str] = {}

    def run(self) -> Manifest:
        (self._folder / BLOBS).mkdir(mode=0o700)
        with (
            contextlib.closing(_connect(self._database)) as database,
            contextlib.closing(_connect(self._ledger)) as ledger,
        ):
            self._copy_in_rounds(database)
            with self._blobs.lock_shared():
                _begin_read(ledger)
                _begin_read(database)
                fixed_at = datetime.datetime.now(datetime.UTC)
                rows = _blob_rows(database)
                self._copy(rows)
            self._drop_unnamed(rows)
            copied_ledger = self._copy_file(ledger, LEDGER)
            copied_database = self._copy_file(database, DATABASE)
        sync_tree(self._folder)
        keys = sorted(self._copied)
        blobs = CopiedBlobs(len(keys), sum(self._copied.values()), keys_digest(keys))
        damaged = tuple(sorted(self._damaged))
        manifest = Manifest(
            FORMAT, version("onceward"), time_text(fixed_at), copied_database, copied_ledger, blobs, damaged
        )
        write_manifest(self._folder, manifest)
        return manifest

    def _copy_in_rounds(self, database: sqlite3.Connection) -> None:
        for _ in range(_ROUNDS_MAX):
            rows = [one for one in _blob_rows(database) if one.key not in self._copied and one.key not in self._damaged]
            left = sum(one.size for one in rows)
            self._total = max(self._total, self._done + left)
            self._require_room(left)
            self._copy(rows)
            if left <= _LOCKED_BYTES_MAX:
                break
        # Those that gc deleted in the meantime were not damaged. Step 2 looks at the others again.
        self._damaged.clear()

    def _require_room(self, wanted: int) -> None:
        wanted += self._database.stat().st_size + self._ledger.stat().st_size
        free = shutil.disk_usage(self._folder).free
        if free < wanted:
            raise StoreUnavailable(
                f"{str(self._folder)!r} has {free} bytes of free space, and the backup needs {wanted} more; choose"
                " another disk"
            )

    def _copy(self, rows: list[_BlobRow]) -> None:
        for one in rows:
            if one.key in self._copied or one.key in self._damaged:
                continue
            if one.backend != FolderBlobs.backend:
                self._damaged[one.key] = f"stored in {one.backend}"
                continue
            try:
                self._copied[one.key] = self._copy_blob(one)
            except OncewardError as error:
                self._damaged[one.key] = str(error)

    def _copy_blob(self, one: _BlobRow) -> int:
        pieces = self._blobs.read(one.key)
        target = self._folder / BLOBS / one.key
        make_parents(self._folder, target)
        digest, size = hashlib.sha256(), 0
        try:
            with private_file(target) as file:
                for piece in pieces:
                    digest.update(piece)
                    file.write(piece)
                    size += len(piece)
                    self._add(len(piece))
                file.flush()
                sync(file.fileno())
            _require_match(one, digest.hexdigest())
        except BaseException:
            target.unlink(missing_ok=True)
            raise
        return size

    def _drop_unnamed(self, rows: list[_BlobRow]) -> None:
        """Remove copies of blobs whose rows were deleted between step 1 and step 2."""
        for key in self._copied.keys() - {one.key for one in rows}:
            (self._folder / BLOBS / key).unlink()
            del self._copied[key]

    def _copy_file(self, source: sqlite3.Connection, name: str) -> CopiedFile:
        target = self._folder / name
        with private_file(target):
            pass
        page_bytes = int(source.execute("PRAGMA page_size").fetchone()[0])
        before = self._done

        def add(_status: int, left: int, pages: int) -> None:
            self._done = before
            self._add((pages - left) * page_bytes)

        with contextlib.closing(_connect(target)) as copy:
            copy.execute("PRAGMA synchronous = OFF")  # synced below
            source.backup(copy, pages=_PAGES_PER_STEP, progress=add)
        with contextlib.closing(_connect(target)) as copy:
            # The source is in WAL mode. A backup must be one file.
            copy.execute("PRAGMA journal_mode = DELETE")
            if (found := copy.execute("PRAGMA quick_check(1)").fetchone()[0]) != "ok":
                raise StoreUnavailable(f"{name} is damaged: {found}")
            tables = {table: _count(copy, table) for table in _tables(copy)}
        with target.open("rb") as file:
            sync(file.fileno())
        return CopiedFile(name, target.stat().st_size, file_digest(target), tables)

    def _add(self, size: int) -> None:
        self._done += size
        self._total = max(self._total, self._done)
        self._progress(self._done, self._total)


def _require_match(one: _BlobRow, sha256: str) -> None:
    if sha256 != one.sha256:
        raise StoreUnavailable(f"the blob {one.key} is damaged")


def _connect(file: Path) -> sqlite3.Connection:
    """Open an existing file. Not read-only: SQLite must be able to create the index of the WAL."""
    try:
        return sqlite3.connect(
            f"file:{quote(str(file.absolute()))}?mode=rw", uri=True, isolation_level=None, timeout=_BUSY_SECONDS
        )
    except sqlite3.Error as error:
        raise failure_of(error, file) from error


def _begin_read(connection: sqlite3.Connection) -> None:
    """Open a read transaction. SQLite fixes what it sees at its first read."""
    connection.execute("BEGIN")
    connection.execute("SELECT count(*) FROM sqlite_master").fetchone()


def _blob_rows(database: sqlite3.Connection) -> list[_BlobRow]:
    """Return the blobs that rows name, each key once."""
    tables = _tables(database)
    found = [
        _BlobRow(*row)
        for table, statement in (("artifacts", _NAMED_BY_ARTIFACTS), ("blobs", _NAMED_BY_BLOBS))
        if table in tables
        for row in database.execute(statement)
    ]
    return list({one.key: one for one in found}.values())


def _tables(connection: sqlite3.Connection) -> list[str]:
    names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")
    return [name for (name,) in names if not name.startswith("sqlite_")]


def _count(connection: sqlite3.Connection, table: str) -> int:
    quoted = '"' + table.replace('"', '""') + '"'
    return int(connection.execute(f"SELECT count(*) FROM {quoted}").fetchone()[0])  # noqa: S608  # quoted
