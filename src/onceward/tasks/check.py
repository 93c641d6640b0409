"""Looks whether the bytes of every blob are there and are what their name says."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

from sqlalchemy import text

from onceward.blobs import BlobStore
from onceward.db.engine import Database
from onceward.errors import NotFound, OncewardError, StoreUnavailable

MISSING, WRONG_SIZE, WRONG_CONTENT, ELSEWHERE = "missing", "wrong-size", "wrong-content", "elsewhere"
# The disk or the file system refuses it, or it is no file.
UNREADABLE = "unreadable"
LOCAL = "local_cas"
_PAGE_SIZE = 200


@dataclass(frozen=True, slots=True)
class Damage:
    """A blob that is not what it should be, and the attachments that name it."""

    blob_id: str
    sha256: str
    blob_key: str
    problem: str
    attachments: tuple[str, ...]
    quarantined: bool = False

    def shown(self) -> dict[str, object]:
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
_ATTACHMENTS = text("SELECT id FROM attachments WHERE blob_id = :id ORDER BY id")


def check_blobs(
    database: Database, store: BlobStore, *, quarantine: bool, progress: Callable[[int], None] = lambda _: None
) -> Iterator[Damage]:
    """Each damaged blob. In quarantine its bytes are out of the way and kept; an upload of the content repairs it."""
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
    """Looks again where nobody comes between: the blob may have been collected meanwhile, or repaired by an upload."""
    with store.guarded():
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
        # What cannot even be moved is told with the rest, and stays.
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
        if store.backend != LOCAL:
            # The server is down, which says nothing about a blob.
            raise
        return UNREADABLE
    return None if found == blob.sha256 else WRONG_CONTENT


def holds(store: BlobStore, blob_key: str, sha256: str) -> bool:
    """Whether these bytes are there and can be read."""
    try:
        return _digest(store, blob_key) == sha256
    except (NotFound, StoreUnavailable):
        return False


def _digest(store: BlobStore, blob_key: str) -> str:
    digest = hashlib.sha256()
    for chunk in store.read(blob_key):
        digest.update(chunk)
    return digest.hexdigest()
