"""Looks whether the bytes of every blob are there and are what their name says."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

from sqlalchemy import text

from onceward.blobs import BlobStore
from onceward.db.engine import Database
from onceward.errors import NotFound

MISSING, WRONG_SIZE, WRONG_CONTENT, ELSEWHERE = "missing", "wrong-size", "wrong-content", "elsewhere"
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


_PAGE = text("""
    SELECT id, sha256, size_bytes, storage_backend, blob_key FROM blobs WHERE id > :after ORDER BY id LIMIT :limit
""")
_ATTACHMENTS = text("SELECT id FROM attachments WHERE blob_id = :id ORDER BY id")


def check_blobs(
    database: Database, store: BlobStore, *, quarantine: bool, progress: Callable[[int], None] = lambda _: None
) -> Iterator[Damage]:
    """Each damaged blob. In quarantine its bytes are out of the way and kept; an upload of the content repairs it."""
    after = ""
    while True:
        with database.read() as tx:
            rows = tx.execute(_PAGE, {"after": after, "limit": _PAGE_SIZE}).all()
        if not rows:
            return
        for blob_id, sha256, size, backend, key in rows:
            problem = _problem(store, sha256, size, key) if backend == store.backend else ELSEWHERE
            if problem is not None:
                bad = quarantine and problem in {WRONG_SIZE, WRONG_CONTENT}
                if bad:
                    store.quarantine(key)
                with database.read() as tx:
                    named = tuple(tx.execute(_ATTACHMENTS, {"id": blob_id}).scalars())
                yield Damage(blob_id, sha256, key, problem, named, quarantined=bad)
            progress(size)
        after = rows[-1][0]


def _problem(store: BlobStore, sha256: str, size: int, key: str) -> str | None:
    there = store.size(key)
    if there is None:
        return MISSING
    if there != size:
        return WRONG_SIZE
    digest = hashlib.sha256()
    try:
        for chunk in store.read(key):
            digest.update(chunk)
    except NotFound:
        return MISSING
    return None if digest.hexdigest() == sha256 else WRONG_CONTENT
