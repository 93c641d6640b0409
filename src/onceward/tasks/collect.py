"""The collection of garbage: what nothing needs any more goes, and nothing else.

The row goes first and the bytes after it. While the row is there an upload can use it; once its deletion is committed
nothing names the bytes, and an upload of the same content starts anew. The other way round, as it is often sketched, an
upload that comes in between keeps a row without bytes.

A folder has one name for one content, so deleting the row and taking the name away happen under the lock under which an
upload makes sure of its name. In an object store every put has its own name; the foreign key of a racing attachment
refuses the deletion of the row, and that is all it needs.
"""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass

import sqlalchemy.exc
from sqlalchemy import bindparam, text

from onceward.blobs import BlobStore, Stored
from onceward.db.clock import time_text
from onceward.db.engine import Database, Transaction
from onceward.errors import OncewardError
from onceward.events.log import append
from onceward.tasks.attachment import get_attachment, removed_event

BATCH_SIZE = 500
GRACE_SECONDS = 24 * 3600.0
# Bytes without a row may be those of an upload that is just about to commit one. In a folder the lock protects these,
# in an object store only time does.
ORPHAN_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class Collected:
    """What was found, and what became of it. A dry run counts with the same conditions and deletes nothing."""

    candidate_count: int
    deleted_count: int
    failed_count: int
    reclaimed_bytes: int
    dry_run: bool
    expired_count: int = 0
    orphan_count: int = 0

    def shown(self) -> dict[str, object]:
        return asdict(self)


# What is collected: old enough, and without an attachment that still counts.
_COLLECTABLE = """
    blobs.uploaded_at < :before AND NOT EXISTS (
        SELECT 1 FROM attachments WHERE attachments.blob_id = blobs.id
        AND (attachments.expires_at IS NULL OR attachments.expires_at > :now)
    )
"""
_PAGE = text(f"""
    SELECT id, blob_key, size_bytes FROM blobs WHERE id > :after AND {_COLLECTABLE} ORDER BY id LIMIT :limit
""")  # noqa: S608  # put together from constants
# Asked again where it counts: an upload may have used the blob since the page was read.
_DELETE = text(f"DELETE FROM blobs WHERE id IN :ids AND {_COLLECTABLE} RETURNING id").bindparams(  # noqa: S608
    bindparam("ids", expanding=True)
)
_EXPIRED = text("SELECT id FROM attachments WHERE expires_at <= :now AND id > :after ORDER BY id LIMIT :limit")
_DROP = text("DELETE FROM attachments WHERE id = :id AND expires_at <= :now")
_COUNT_EXPIRED = text("SELECT count(*) FROM attachments WHERE expires_at <= :now")
_KNOWN = text("SELECT blob_key FROM blobs WHERE storage_backend = :backend AND sha256 IN :hashes").bindparams(
    bindparam("hashes", expanding=True)
)


@dataclass(frozen=True, slots=True)
class _Candidate:
    id: str
    key: str
    size: int


def gc_blobs(
    database: Database,
    store: BlobStore,
    *,
    dry_run: bool,
    batch_size: int = BATCH_SIZE,
    grace_seconds: float = GRACE_SECONDS,
    orphan_seconds: float = ORPHAN_SECONDS,
    progress: Callable[[int], None] = lambda _: None,
) -> Collected:
    """Collect expired attachments, blobs that nothing needs, and bytes without a row.

    `progress` hears of each batch how many were looked at.
    """
    moment = datetime.datetime.now(datetime.UTC)
    now = time_text(moment)
    before = time_text(moment - datetime.timedelta(seconds=grace_seconds))
    expired = _count_expired(database, now) if dry_run else _delete_expired(database, now, batch_size)
    found = deleted = failed = reclaimed = 0
    for page in _pages(database, now, before, batch_size):
        found += len(page)
        if dry_run:
            reclaimed += sum(one.size for one in page)
        else:
            gone, bad = _collect(database, store, page, {"now": now, "before": before})
            deleted += len(gone)
            reclaimed += sum(one.size for one in gone)
            failed += bad
        progress(len(page))
    orphans = 0
    age = max(grace_seconds, 0.0 if store.backend == "local_cas" else orphan_seconds)
    for batch in _batches(_old(store, moment - datetime.timedelta(seconds=age)), batch_size):
        orphans += _sweep(database, store, batch, dry_run=dry_run)
    if not dry_run:
        store.sweep_temporary(max(grace_seconds, ORPHAN_SECONDS))
        store.empty_trash(grace_seconds)
    return Collected(found, deleted, failed, reclaimed, dry_run, expired, orphans)


def _pages(database: Database, now: str, before: str, limit: int) -> Iterator[list[_Candidate]]:
    """By key, so that what could not be deleted does not come again."""
    after = ""
    while True:
        with database.read() as tx:
            rows = tx.execute(_PAGE, {"after": after, "now": now, "before": before, "limit": limit}).all()
        if not rows:
            return
        page = [_Candidate(*row) for row in rows]
        yield page
        after = page[-1].id


def _collect(
    database: Database, store: BlobStore, page: Sequence[_Candidate], when: dict[str, str]
) -> tuple[list[_Candidate], int]:
    """Those whose row is gone, and how many failed. One that fails is no reason to keep the others."""
    failed = 0
    gone: list[_Candidate] = []
    with store.guarded():
        try:
            gone = _delete(database, page, when)
        except (sqlalchemy.exc.IntegrityError, OncewardError):
            if len(page) > 1:
                for one in page:
                    deleted, bad = _collect_one(database, one, when)
                    gone += deleted
                    failed += bad
            else:
                failed = 1
        for one in gone:
            try:
                store.discard(one.key)
            except OncewardError:
                # The row is gone; the sweep of the next run finds the bytes.
                failed += 1
    return gone, failed


def _collect_one(database: Database, one: _Candidate, when: dict[str, str]) -> tuple[list[_Candidate], int]:
    try:
        return _delete(database, [one], when), 0
    except sqlalchemy.exc.IntegrityError:
        # An attachment came between: it is no garbage any more.
        return [], 0
    except OncewardError:
        return [], 1


def _delete(database: Database, page: Sequence[_Candidate], when: dict[str, str]) -> list[_Candidate]:
    with database.write() as tx:
        ids = set(tx.execute(_DELETE, {"ids": [one.id for one in page], **when}).scalars())
    return [one for one in page if one.id in ids]


def _count_expired(database: Database, now: str) -> int:
    with database.read() as tx:
        return int(tx.execute(_COUNT_EXPIRED, {"now": now}).scalar_one())


def _delete_expired(database: Database, now: str, limit: int) -> int:
    deleted, after = 0, ""
    while True:
        with database.write() as tx:
            ids = list(tx.execute(_EXPIRED, {"now": now, "after": after, "limit": limit}).scalars())
            deleted += _drop(tx, ids, now)
        if not ids:
            return deleted
        after = ids[-1]


def _drop(tx: Transaction, ids: Sequence[str], now: str) -> int:
    gone = [get_attachment(tx, one) for one in ids]
    gone = [one for one in gone if tx.execute(_DROP, {"id": one.id, "now": now}).rowcount]
    append(tx, [removed_event(one) for one in gone])
    return len(gone)


def _batches(items: Iterator[Stored], size: int) -> Iterator[list[Stored]]:
    while batch := list(itertools.islice(items, size)):
        yield batch


def _old(store: BlobStore, before: datetime.datetime) -> Iterator[Stored]:
    return (stored for stored in store.keys() if stored.modified < before)  # noqa: SIM118  # not a dictionary's


def _sweep(database: Database, store: BlobStore, stored: Sequence[Stored], *, dry_run: bool) -> int:
    """Bytes without a row."""
    known = _known(database, store, stored)
    orphans = [one for one in stored if one.key not in known]
    if dry_run or not orphans:
        return len(orphans)
    swept = 0
    with store.guarded():
        known = _known(database, store, orphans)
        for one in orphans:
            if one.key not in known:
                store.discard(one.key)
                swept += 1
    return swept


def _known(database: Database, store: BlobStore, stored: Sequence[Stored]) -> set[str]:
    with database.read() as tx:
        hashes = sorted({_sha256_of(one.key) for one in stored})
        return set(tx.execute(_KNOWN, {"backend": store.backend, "hashes": hashes}).scalars())


def _sha256_of(blob_key: str) -> str:
    """Of `sha256/ab/cd/<sha256>`, with or without the id of a put behind it."""
    return blob_key.split("/")[3]
