"""Fsck: compares the bytes of every blob with the hash and size in its row."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

from sqlalchemy import text

from onceward.errors import NotFound, OncewardError, StoreUnavailable
from onceward.hub.blobs import BlobStore
from onceward.hub.blobs.folder import FolderBlobs
from onceward.hub.db.engine import Database

MISSING, WRONG_SIZE, WRONG_CONTENT, ELSEWHERE = "missing", "wrong-size", "wrong-content", "elsewhere"
# The disk or the file system reports an error, or the key does not lead to a regular file.
UNREADABLE = "unreadable"
_PAGE_SIZE = 200


@dataclass(frozen=True, slots=True)
class Damage:
    """A damaged blob, and the attachments that reference it."""

    blob_id: str
    sha256: str
    blob_key: str
    problem: str
    attachments: tuple[str, ...]
    quarantined: bool = False

    def json(self) -> dict[str, object]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class _Blob:
    id: str
    sha256: str
    size: int
    backend: str
    key: str


_COLUMNS = "SELECT id, sha256, size_bytes, storage_backend, blob_key FROM blobs"
_PAGE = text(f"{_COLUMNS} WHERE id > :after ORDER BY id LIMIT :limit")
_ONE = text(f"{_COLUMNS} WHERE id = :id")
_TOTALS = text("SELECT count(*), coalesce(sum(size_bytes), 0) FROM blobs")
_ATTACHMENTS = text("SELECT id FROM attachments WHERE blob_id = :id ORDER BY id")


def blob_totals(database: Database) -> tuple[int, int]:
    """Return the number of blobs and of their bytes, for progress."""
    with database.read() as tx:
        count, size = tx.execute(_TOTALS).one()
    return int(count), int(size)


def check_blobs(
    database: Database, store: BlobStore, *, quarantine: bool, progress: Callable[[int], None] = lambda _: None
) -> Iterator[Damage]:
    """Yield each damaged blob.

    `quarantine` moves damaged bytes out of the way and keeps them; a new upload of the content then repairs the blob.
    """
    after = ""
    while True:
        with database.read() as tx:
            page = [_Blob(*row) for row in tx.execute(_PAGE, {"after": after, "limit": _PAGE_SIZE})]
        if not page:
            return
        for blob in page:
            if _problem(store, blob) is not None and (
                damage := _damage(database, store, blob.id, quarantine=quarantine)
            ):
                yield damage
            progress(blob.size)
        after = page[-1].id


def _damage(database: Database, store: BlobStore, blob_id: str, *, quarantine: bool) -> Damage | None:
    """Check a blob again under the store's lock: gc may have deleted it meanwhile, or an upload repaired it."""
    with store.lock():
        with database.read() as tx:
            row = tx.execute(_ONE, {"id": blob_id}).one_or_none()
        blob = None if row is None else _Blob(*row)
        problem = None if blob is None else _problem(store, blob)
        if blob is None or problem is None:
            return None
        aside = quarantine and problem in {WRONG_SIZE, WRONG_CONTENT, UNREADABLE} and _put_aside(store, blob.key)
    with database.read() as tx:
        named = tuple(tx.execute(_ATTACHMENTS, {"id": blob_id}).scalars())
    return Damage(blob.id, blob.sha256, blob.key, problem, named, quarantined=aside)


def _put_aside(store: BlobStore, blob_key: str) -> bool:
    try:
        store.quarantine(blob_key)
    except OncewardError:
        # Bytes that cannot be moved stay where they are; the damage is reported with `quarantined=False`.
        return False
    return True


def _problem(store: BlobStore, blob: _Blob) -> str | None:
    if blob.backend != store.backend:
        return ELSEWHERE
    try:
        there = store.size(blob.key)
        if there is None:
            return MISSING
        if there != blob.size:
            return WRONG_SIZE
        found = _digest(store, blob.key)
    except NotFound:
        return MISSING
    except StoreUnavailable:
        if store.backend != FolderBlobs.backend:
            # The server is down, so nothing is known about the blob.
            raise
        return UNREADABLE
    return None if found == blob.sha256 else WRONG_CONTENT


def holds(store: BlobStore, blob_key: str, sha256: str) -> bool:
    """Return whether the store has the bytes with this hash under the key and can read them."""
    try:
        return _digest(store, blob_key) == sha256
    except (NotFound, StoreUnavailable):
        return False


def _digest(store: BlobStore, blob_key: str) -> str:
    digest = hashlib.sha256()
    for chunk in store.read(blob_key):
        digest.update(chunk)
    return digest.hexdigest()
