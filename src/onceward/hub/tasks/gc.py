"""Garbage collection: deletes expired attachments, blobs that nothing references, and bytes without a row.

Gc deletes the row first and the bytes afterwards. While the row exists, an upload can use it. Once its deletion is
committed, nothing references the bytes, and an upload of the same content stores them again. In the reverse order,
an upload between the two steps would be left with a row without bytes.

A folder has one name for each content. So gc deletes the row and the name under the lock under which an upload makes
sure that the name exists. In an object store every put has its own name. There the foreign key of a concurrent
attachment prevents the deletion of the row, and no lock is needed.
"""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass

import sqlalchemy.exc
from sqlalchemy import bindparam, text

from onceward.errors import AlreadyThere, OncewardError
from onceward.hub.blobs import BlobStore, Stored
from onceward.hub.blobs.folder import FolderBlobs
from onceward.hub.db.engine import Database
from onceward.hub.db.timestamps import time_text
from onceward.hub.events.log import append, extent
from onceward.hub.tasks.attachment import attachments_of_ids, removed_event
from onceward.hub.tasks.quota import give_back

BATCH_SIZE = 500
GRACE_SECONDS = 24 * 3600.0
# Bytes without a row may belong to an upload that is about to commit its row. In a folder the lock protects them, in
# an object store only this minimum age.
ORPHAN_SECONDS = 3600.0
# Gc skips a blob that cannot be deleted. This many failures in a row mean that the store is down, and each may take a
# minute to time out.
FAILURES_MAX = 10


@dataclass(frozen=True, slots=True)
class Collected:
    """Counts of one gc run. A dry run counts with the same conditions and deletes nothing.

    Attributes:
        candidate_count: Blobs that nothing needs.
        deleted_count: Blobs that were deleted, row and bytes.
        failed_count: Blobs and files that could not be deleted, also from the trash of an earlier run. The next run
            tries them again.
        reclaimed_bytes: Bytes of deleted blobs and orphans together.
        dry_run: Whether this was a dry run.
        expired_count: Expired attachments.
        orphan_count: Bytes without a row: those of finished uploads, and temporary files of uploads whose process died.
    """

    candidate_count: int
    deleted_count: int
    failed_count: int
    reclaimed_bytes: int
    dry_run: bool
    expired_count: int = 0
    orphan_count: int = 0

    def json(self) -> dict[str, object]:
        return asdict(self)


# Blobs to delete: in this store, older than the grace period, without an unexpired attachment, and not shared with an
# artifact.
_COLLECTABLE = """
    blobs.storage_backend = :backend AND blobs.uploaded_at < :before AND NOT EXISTS (
        SELECT 1 FROM attachments WHERE attachments.blob_id = blobs.id
        AND (attachments.expires_at IS NULL OR attachments.expires_at > :now)
    ) AND NOT EXISTS (
        SELECT 1 FROM artifacts WHERE artifacts.blob_sha256 = blobs.sha256 AND artifacts.blob_key = blobs.blob_key
    )
"""
_PAGE = text(f"""
    SELECT id, blob_key, size_bytes FROM blobs WHERE id > :after AND {_COLLECTABLE} ORDER BY id LIMIT :limit
""")  # noqa: S608  # put together from constants
# The condition is checked again in the DELETE: an upload may have used the blob since the page was read.
_DELETE = text(f"DELETE FROM blobs WHERE id IN :ids AND {_COLLECTABLE} RETURNING id").bindparams(  # noqa: S608
    bindparam("ids", expanding=True)
)
_EXPIRED = "SELECT id FROM attachments WHERE expires_at <= :now AND id > :after ORDER BY id LIMIT :limit"
_EXPIRED_SQLITE = text(_EXPIRED)
# SKIP LOCKED: skip rows that another transaction is changing.
_EXPIRED_POSTGRES = text(f"{_EXPIRED} FOR UPDATE SKIP LOCKED")
_DROP = text("DELETE FROM attachments WHERE id IN :ids RETURNING id, principal").bindparams(
    bindparam("ids", expanding=True)
)
_COUNT_EXPIRED = text("SELECT count(*) FROM attachments WHERE expires_at <= :now")
# Large artifacts of turns are stored among the blobs too, without a row in `blobs`.
_KNOWN = text("""
    SELECT blob_key FROM blobs WHERE storage_backend = :backend AND sha256 IN :hashes
    UNION SELECT blob_key FROM artifacts WHERE blob_sha256 IN :hashes
""").bindparams(bindparam("hashes", expanding=True))


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
    """Delete expired attachments, blobs that nothing needs, and bytes without a row.

    `progress` is called after each batch, with the number of files that are done: deleted, or found to be needed.
    """
    _require_owner(database, store)
    moment = datetime.datetime.now(datetime.UTC)
    now = time_text(moment)
    before = time_text(moment - datetime.timedelta(seconds=grace_seconds))
    expired = _count_expired(database, now) if dry_run else _delete_expired(database, now, batch_size)
    when = {"now": now, "before": before, "backend": store.backend}
    bin_ = _Bin(store)
    found = deleted = reclaimed = orphans = 0
    for page in _pages(database, when, batch_size):
        found += len(page)
        gone = page if dry_run else _collect(database, bin_, page, when)
        deleted += 0 if dry_run else len(gone)
        reclaimed += sum(one.size for one in gone)
        progress(0 if dry_run else len(gone))
    age = max(grace_seconds, 0.0 if store.backend == FolderBlobs.backend else orphan_seconds)
    before_sweep = moment - datetime.timedelta(seconds=age)
    for batch in _batches(iter(store.keys()), batch_size):
        swept = _sweep(database, bin_, [one for one in batch if one.modified < before_sweep], dry_run=dry_run)
        orphans += len(swept)
        reclaimed += sum(one.size for one in swept)
        progress(len(batch))
    # The grace period is enough: a running upload holds the lock of its temporary file, however old that file is.
    temporary = store.sweep_temporary(grace_seconds, dry_run=dry_run)
    if not dry_run:
        bin_.failed_count += temporary.failed_count + store.empty_trash(grace_seconds).failed_count
    return Collected(
        found,
        deleted,
        bin_.failed_count,
        reclaimed + temporary.orphan_bytes,
        dry_run,
        expired,
        orphans + temporary.orphan_count,
    )


def _require_owner(database: Database, store: BlobStore) -> None:
    """Refuse gc on blobs of another database: without rows for them, all of them would look like garbage."""
    with database.read() as tx:
        own = extent(tx).log_epoch
    owner = store.owner(own)
    if owner != own:
        raise AlreadyThere(
            f"these blobs belong to another database (its log_epoch is {owner[:64]!r}, this one's is {own!r}); nothing"
            " was deleted. If that database is gone for good, delete the file or object `owner` next to the blobs"
        )


class _Bin:
    """Deletes bytes from the store and counts failures."""

    def __init__(self, store: BlobStore) -> None:
        self.store = store
        self.failed_count = 0
        self._failed: set[str] = set()
        self._in_a_row = 0

    def take(self, blob_key: str) -> bool:
        if blob_key in self._failed:
            return False
        try:
            self.store.discard(blob_key)
        except OncewardError:
            # No row references it, so the orphan sweeps of this run and the next find it.
            self._failed.add(blob_key)
            self.failed_count += 1
            self._in_a_row += 1
            if self._in_a_row >= FAILURES_MAX:
                raise
            return False
        self._in_a_row = 0
        return True


def _pages(database: Database, when: dict[str, str], limit: int) -> Iterator[list[_Candidate]]:
    """Yield candidates in pages by id, so that a blob that could not be deleted does not come again."""
    after = ""
    while True:
        with database.read() as tx:
            rows = tx.execute(_PAGE, {"after": after, "limit": limit, **when}).all()
        if not rows:
            return
        page = [_Candidate(*row) for row in rows]
        yield page
        after = page[-1].id


def _collect(database: Database, bin_: _Bin, page: Sequence[_Candidate], when: dict[str, str]) -> Sequence[_Candidate]:
    """Delete the blobs of a page, and return those whose row and bytes are gone. A failure does not stop the others."""
    with bin_.store.lock():
        try:
            rowless = _delete(database, page, when)
        except (sqlalchemy.exc.IntegrityError, OncewardError):
            rowless = [one for one in page if _delete_one(database, bin_, one, when)]
        return [one for one in rowless if bin_.take(one.key)]


def _delete_one(database: Database, bin_: _Bin, one: _Candidate, when: dict[str, str]) -> bool:
    try:
        return bool(_delete(database, [one], when))
    except sqlalchemy.exc.IntegrityError:
        # A new attachment references the blob.
        return False
    except OncewardError:
        bin_.failed_count += 1
        return False


def _delete(database: Database, page: Sequence[_Candidate], when: dict[str, str]) -> list[_Candidate]:
    with database.write() as tx:
        ids = set(tx.execute(_DELETE, {"ids": [one.id for one in page], **when}).scalars())
    return [one for one in page if one.id in ids]


def _count_expired(database: Database, now: str) -> int:
    with database.read() as tx:
        return int(tx.execute(_COUNT_EXPIRED, {"now": now}).scalar_one())


def _delete_expired(database: Database, now: str, limit: int) -> int:
    deleted, after = 0, ""
    page = _EXPIRED_SQLITE if database.is_sqlite else _EXPIRED_POSTGRES
    while True:
        with database.write() as tx:
            ids = list(tx.execute(page, {"now": now, "after": after, "limit": limit}).scalars())
            if not ids:
                return deleted
            gone = attachments_of_ids(tx, ids)
            payers = {row.id: row.principal for row in tx.execute(_DROP, {"ids": ids})}
            give_back(tx, [(payers.get(one.id), one.size_bytes) for one in gone])
            append(tx, [removed_event(one) for one in gone])
        deleted += len(gone)
        after = ids[-1]


def _batches(items: Iterator[Stored], size: int) -> Iterator[list[Stored]]:
    while batch := list(itertools.islice(items, size)):
        yield batch


def _sweep(database: Database, bin_: _Bin, stored: Sequence[Stored], *, dry_run: bool) -> list[Stored]:
    """Delete bytes without a row and return them; a dry run returns what would be deleted."""
    if not stored:
        return []
    known = _known(database, bin_.store, [one.key for one in stored])
    orphans = [one for one in stored if one.key not in known]
    if dry_run or not orphans:
        return orphans
    with bin_.store.lock():
        known = _known(database, bin_.store, [one.key for one in orphans])
        return [one for one in orphans if one.key not in known and bin_.take(one.key)]


def discard_unreferenced(database: Database, store: BlobStore, blob_key: str) -> None:
    """Delete bytes that were just stored, unless a row references them: that of another upload of the same content."""
    with store.lock():
        if blob_key not in _known(database, store, [blob_key]):
            store.discard(blob_key)


def _known(database: Database, store: BlobStore, blob_keys: Sequence[str]) -> set[str]:
    with database.read() as tx:
        hashes = sorted({_sha256_of(blob_key) for blob_key in blob_keys})
        return set(tx.execute(_KNOWN, {"backend": store.backend, "hashes": hashes}).scalars())


def _sha256_of(blob_key: str) -> str:
    """Return the hash in a key `sha256/ab/cd/<sha256>`, which may be followed by a blob id."""
    return blob_key.split("/")[3]
