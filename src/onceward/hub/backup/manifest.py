"""The manifest of a backup, `backup.json`. It is written last, so a folder without one is not a complete backup."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onceward.errors import InvalidInput
from onceward.store.durable import sync

MANIFEST = "backup.json"
DATABASE, LEDGER, BLOBS = "hub.db", "ledger.db", "blobs"
FORMAT = 1
_READ_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class CopiedFile:
    """An SQLite file in the backup. `tables` has the number of rows of each table."""

    name: str
    size_bytes: int
    sha256: str
    tables: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class CopiedBlobs:
    """The blobs in the backup. `keys_sha256` is the hash of their sorted keys; each key has the hash of its bytes."""

    count: int
    size_bytes: int
    keys_sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """The contents of a backup.

    Attributes:
        format: The version of this layout.
        onceward: The version of Onceward that made the backup.
        created_at: The time at which the copy of the data was fixed.
        database: The copy of the hub's database.
        ledger: The copy of the ledger.
        blobs: The copies of all blobs that rows of the database name.
        damaged: Keys of blobs whose bytes were missing or damaged already. They are not in the backup.
    """

    format: int
    onceward: str
    created_at: str
    database: CopiedFile
    ledger: CopiedFile
    blobs: CopiedBlobs
    damaged: tuple[str, ...] = ()

    def json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def keys_digest(keys: Iterable[str]) -> str:
    return hashlib.sha256("".join(f"{key}\n" for key in sorted(keys)).encode()).hexdigest()


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write the manifest, which makes the backup complete. Everything else must be on the disk already."""
    part = folder / f"{MANIFEST}.part"
    with private_file(part) as file:
        file.write(json.dumps(manifest.json(), indent=2).encode() + b"\n")
        file.flush()
        sync(file.fileno())
    part.rename(folder / MANIFEST)
    sync_folder(folder)


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of a backup.

    Raises:
        InvalidInput: The folder is not a complete backup, or one of a newer version.
    """
    if not folder.is_dir():
        raise InvalidInput(f"{str(folder)!r} is not a folder with a backup")
    try:
        found = json.loads((folder / MANIFEST).read_bytes())
    except FileNotFoundError:
        raise InvalidInput(
            f"{str(folder)!r} is not a complete backup: it has no {MANIFEST}, which `onceward backup` writes last"
        ) from None
    except (ValueError, RecursionError):
        raise InvalidInput(f"{str(folder / MANIFEST)!r} is damaged; use another backup") from None
    if isinstance(found, dict) and isinstance(found.get("format"), int) and found["format"] > FORMAT:
        raise InvalidInput(
            f"the backup has format {found['format']}; this version reads up to {FORMAT}; upgrade Onceward"
        )
    try:
        manifest = Manifest(
            found["format"],
            found["onceward"],
            found["created_at"],
            CopiedFile(**found["database"]),
            CopiedFile(**found["ledger"]),
            CopiedBlobs(**found["blobs"]),
            tuple(found["damaged"]),
        )
    except (KeyError, TypeError):
        manifest = None
    if manifest is None or not _is_sound(manifest):
        raise InvalidInput(f"{str(folder / MANIFEST)!r} is damaged; use another backup")
    return manifest


def _is_sound(manifest: Manifest) -> bool:
    """Return whether every value has its type, and the files have their names, which become paths."""
    if (manifest.database.name, manifest.ledger.name) != (DATABASE, LEDGER):
        return False
    files, blobs = (manifest.database, manifest.ledger), manifest.blobs
    numbers = [manifest.format, blobs.count, blobs.size_bytes, *(file.size_bytes for file in files)]
    words = [manifest.onceward, manifest.created_at, blobs.keys_sha256, *manifest.damaged]
    words += [file.sha256 for file in files]
    if not all(isinstance(file.tables, Mapping) for file in files):
        return False
    numbers += [count for file in files for count in file.tables.values()]
    return all(type(one) is int for one in numbers) and all(isinstance(one, str) for one in words)


def private_file(path: Path) -> Any:
    """Create a file for this user alone, and open it for writing."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb")


def make_parents(root: Path, place: Path) -> None:
    """Create the folders from `root` down to the parent of `place`, for this user alone."""
    missing = [folder for folder in place.relative_to(root).parents if not (root / folder).exists()]
    for folder in reversed(missing):
        (root / folder).mkdir(mode=0o700, exist_ok=True)


def file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync_folder(folder: Path) -> None:
    """Bring the names in a folder to the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(folder: Path) -> None:
    """Bring the names in a folder and in all folders below it to the disk."""
    for place, _, _ in os.walk(folder):
        sync_folder(Path(place))


def is_empty_or_missing(folder: Path) -> bool:
    return not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))
