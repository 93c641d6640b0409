"""Checks of the machine: data folder, blobs, disk space and file descriptors."""

from __future__ import annotations

import os
import resource
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

from onceward.hub.blobs import BlobStore
from onceward.hub.blobs.folder import FolderBlobs
from onceward.hub.blobs.open import open_blobs
from onceward.hub.config.config import Config
from onceward.hub.config.data_folder import is_readable_by_others
from onceward.hub.config.setting import without_password
from onceward.hub.doctor.check_result import CheckResult, ok, problem, warning

_MIB = 1024 * 1024
# SQLite needs room for a WAL of the largest transaction, and an upload for its bytes (100 MiB by default).
_FREE_BYTES_MIN, _FREE_BYTES_WARNING = 100 * _MIB, 1024 * _MIB
# A thousand connections (the default limit is the smaller of this and three quarters) plus files and databases.
_DESCRIPTORS_MIN = 1024
_PROBE_BYTES = b"onceward doctor"


def data_folder_checks(config: Config) -> Iterator[CheckResult]:
    """Check that the data folder exists and is private."""
    folder = config.data_folder
    if not folder.exists():
        if config.hub.database and config.hub.ledger and config.hub.blobs:
            return
        yield problem("data-folder", f"{str(folder)!r} does not exist", "give the hub's folder with --data-dir")
    elif is_readable_by_others(folder):
        detail = f"other users of this machine can read {str(folder)!r}"
        yield warning("data-folder", detail, f"chmod -R go= {shlex.quote(str(folder.resolve()))}")
    else:
        yield ok("data-folder", f"{str(folder)!r} is private")


def blobs_checks(config: Config) -> Iterator[CheckResult]:
    """Check that blobs can be read and written, without leaving anything."""
    url = config.blobs_url
    if url.startswith("file:"):
        folder = Path(unquote(urlsplit(url).path))
        if missing := [place for place in (folder, folder / "sha256") if not place.is_dir()]:
            yield warning(
                "blobs", f"{str(missing[0])!r} does not exist", "start the hub, which creates it, or correct --blobs"
            )
            return
        if not os.access(folder / "sha256", os.R_OK | os.W_OK | os.X_OK):
            yield problem(
                "blobs", f"this user may not write to {str(folder / 'sha256')!r}", "correct its owner and mode"
            )
            return
    _probe(open_blobs(url))
    yield ok("blobs", f"{without_password(url)} can be read and written")


def _probe(blobs: BlobStore) -> None:
    """Write, read and delete a few bytes. In a folder only as a temporary file: a deleted blob stays in the trash."""
    blobs.ping()
    with blobs.temp_file() as file:
        file.write(_PROBE_BYTES)
        file.finish()
        if blobs.backend == FolderBlobs.backend:
            return
        key = blobs.put(file, "onceward-doctor")
        try:
            for _ in blobs.read(key):
                pass
        finally:
            blobs.discard(key)


def disk_space_checks(config: Config) -> Iterator[CheckResult]:
    """Check the free space of the disks that have the data."""
    places = {"data-folder": config.data_folder}
    if config.blobs_url.startswith("file:"):
        places["blobs"] = Path(unquote(urlsplit(config.blobs_url).path))
    seen: set[int] = set()
    for place in places.values():
        if not place.exists() or (device := place.stat().st_dev) in seen:
            continue
        seen.add(device)
        free = shutil.disk_usage(place).free
        detail = f"{free // _MIB} MiB are free in {str(place)!r}"
        if free < _FREE_BYTES_MIN:
            yield problem("disk-space", detail, "free some space, or nothing can be stored", free_bytes=free)
        elif free < _FREE_BYTES_WARNING:
            yield warning("disk-space", detail, "free some space, or move the data", free_bytes=free)
        else:
            yield ok("disk-space", detail, free_bytes=free)


def descriptor_checks(config: Config) -> Iterator[CheckResult]:
    """Check how many files a process may open."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        yield ok("file-descriptors", "a process may open any number of files")
        return
    needed = max(_DESCRIPTORS_MIN, -(-config.hub.max_connections * 4 // 3))
    detail = f"a process started here may open {limit} files"
    if limit < needed:
        yield warning(
            "file-descriptors", f"{detail}, and the hub needs {needed}", "raise the limit: ulimit -n, LimitNOFILE="
        )
    else:
        yield ok("file-descriptors", detail)
