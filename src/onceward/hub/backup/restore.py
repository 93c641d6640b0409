"""Restore of a backup into an empty data folder.

Everything is copied into the subfolder `.restoring` and verified there, and then moved to its place. The subfolder is
removed last, and a hub refuses to start while it exists, so that no hub starts on a part of its data.

Two things change, because the hub and its clients may have continued after the backup was made. The event log gets a new
`log_epoch`: its next events have the ids of events that clients may know already, and with the new epoch they start
over. New claims get versions above all that the ledger gave out, so that systems which saw later ones do not refuse
them.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

from onceward.errors import AlreadyThere, InvalidConfig, InvalidInput, StoreUnavailable
from onceward.hub.backup.manifest import (
    BLOBS,
    CopiedFile,
    Manifest,
    is_empty_or_missing,
    keys_digest,
    make_parents,
    private_file,
    read_manifest,
    sync_folder,
    sync_tree,
)
from onceward.hub.blobs.open import open_blobs
from onceward.hub.config.config import Config
from onceward.hub.config.data_folder import RESTORING
from onceward.store.durable import sync

# Takes the number of bytes done, and the total.
Progress: TypeAlias = Callable[[int, int | None], object]

_CHUNK_BYTES = 1024 * 1024
# More claims of one key than any hub takes between a backup and its restore.
_VERSIONS_SKIPPED = 1_000_000


def restore(folder: Path, config: Config, progress: Progress = lambda _done, _total: None) -> Manifest:
    """Copy a backup into the data folder of a configuration, and verify every byte of it.

    Args:
        folder: The folder with the backup.
        config: The configuration of the new hub. Its data folder must be empty or missing.
        progress: Called with the number of bytes done and the total.

    Returns:
        The manifest of the backup.

    Raises:
        InvalidInput: The backup is incomplete or damaged.
        InvalidConfig: The configuration has a database, ledger or blobs outside of the data folder.
        AlreadyThere: The data folder is not empty.
        StoreUnavailable: The data cannot be written. The partial copy is removed.
    """
    for name in ("database", "ledger", "blobs"):
        if getattr(config.hub, name):
            raise InvalidConfig(f"hub.{name}: `restore` writes only into the data folder; run it without this setting")
    manifest = read_manifest(folder)
    target = config.data_folder
    if not is_empty_or_missing(target):
        raise AlreadyThere(f"the data folder {str(target)!r} is not empty; restore into a new or empty folder")
    with _made(target) as inner:
        _Restore(folder, inner, manifest, progress).run()
        _renew_epoch_and_versions(inner, manifest)
        sync_tree(inner)
        for name in (BLOBS, manifest.ledger.name, manifest.database.name):
            (inner / name).rename(target / name)
        sync_folder(target)
        inner.rmdir()
        sync_folder(target)
    return manifest


@contextlib.contextmanager
def _made(target: Path) -> Iterator[Path]:
    """Create the data folder and the folder `.restoring` in it. Remove what was written if the block raises."""
    is_new = not target.exists()
    target.mkdir(mode=0o700, parents=True, exist_ok=True)
    inner = target / RESTORING
    inner.mkdir(mode=0o700)
    try:
        yield inner
    except BaseException as error:
        shutil.rmtree(inner, ignore_errors=True)
        if is_new:
            with contextlib.suppress(OSError):
                target.rmdir()
        if isinstance(error, OSError):
            raise StoreUnavailable(
                f"the restore failed: {error.filename or 'cannot write'}: {error.strerror}"
            ) from error
        raise


class _Restore:
    """One restore into the empty folder `inner`."""

    def __init__(self, folder: Path, inner: Path, manifest: Manifest, progress: Progress) -> None:
        self._folder, self._inner, self._manifest, self._progress = folder, inner, manifest, progress
        self._done = 0
        self._total = manifest.database.size_bytes + manifest.ledger.size_bytes + manifest.blobs.size_bytes

    def run(self) -> None:
        free = shutil.disk_usage(self._inner).free
        if free < self._total:
            raise StoreUnavailable(f"the data folder has {free} bytes of free space, and the backup has {self._total}")
        for file in (self._manifest.ledger, self._manifest.database):
            self._copy_file(file)
        self._copy_blobs()

    def _copy_file(self, file: CopiedFile) -> None:
        if self._copy(file.name) != file.sha256:
            raise InvalidInput(
                f"{file.name} in the backup is damaged: it does not match {file.sha256}; use another backup"
            )

    def _copy_blobs(self) -> None:
        keys = sorted(_keys(self._folder / BLOBS))
        expected = self._manifest.blobs
        if len(keys) != expected.count or keys_digest(keys) != expected.keys_sha256:
            raise InvalidInput(
                f"the backup has {len(keys)} blobs, and its manifest names {expected.count}; some are missing or were"
                " added. Use another backup"
            )
        # With its empty subfolders, so that checks before the first start of the hub find nothing missing.
        open_blobs((self._inner / BLOBS).absolute().as_uri())
        for key in keys:
            place = f"{BLOBS}/{key}"
            make_parents(self._inner, self._inner / place)
            if self._copy(place) != key.rpartition("/")[2]:
                raise InvalidInput(f"the blob {key} in the backup is damaged; use another backup")

    def _copy(self, name: str) -> str:
        """Copy a file of the backup and return the hash of its bytes."""
        digest = hashlib.sha256()
        try:
            source = (self._folder / name).open("rb")
        except FileNotFoundError:
            raise InvalidInput(f"the backup has no file {name}; use another backup") from None
        with source, private_file(self._inner / name) as target:
            while piece := source.read(_CHUNK_BYTES):
                digest.update(piece)
                target.write(piece)
                self._done += len(piece)
                self._progress(self._done, self._total)
            target.flush()
            sync(target.fileno())
        return digest.hexdigest()


def _keys(blobs: Path) -> Iterator[str]:
    for place, _, names in os.walk(blobs):
        for name in names:
            yield str((Path(place) / name).relative_to(blobs))


def _renew_epoch_and_versions(inner: Path, manifest: Manifest) -> None:
    """Start a new epoch of the event log, and skip versions that the ledger may have given out since the backup."""
    try:
        if "event_log" in manifest.database.tables:
            with contextlib.closing(sqlite3.connect(inner / manifest.database.name)) as database, database:
                database.execute("UPDATE event_log SET log_epoch = ?", (secrets.token_hex(8),))
        if "platform_idempotency_meta" in manifest.ledger.tables:
            with contextlib.closing(sqlite3.connect(inner / manifest.ledger.name)) as ledger, ledger:
                newest = "SELECT coalesce(max(version), 0) FROM platform_idempotency_keys"
                ledger.execute(
                    f"UPDATE platform_idempotency_meta SET version_floor = max(version_floor, ({newest})) + ?",  # noqa: S608
                    (_VERSIONS_SKIPPED,),
                )
    except sqlite3.Error as error:
        raise StoreUnavailable(f"the restored files cannot be opened: {error}") from error
