"""Attachments whose bytes are kept here, each content once.

The bytes come first and the rows after them, so that no row ever names bytes that are not there. A folder has one name
for one content, which the collection of garbage may take away at any moment before the row is there; so both happen
under the store's lock, where the name is made again if it is gone. In an object store every put has a name of its own,
which only the row of that put can make known.
"""

from __future__ import annotations

import contextlib
import datetime
import time
from collections.abc import Sequence

from sqlalchemy import text

from onceward.blobs import BlobStore
from onceward.blobs.archive import ArchiveLimits, inspect
from onceward.blobs.media import is_allowed, settle, sniff
from onceward.blobs.media.lattice import UNKNOWN
from onceward.blobs.spool import Spool
from onceward.core.record import record
from onceward.core.text import refused
from onceward.db.clock import now_text
from onceward.db.engine import Database, Transaction
from onceward.db.plain import Plain
from onceward.db.request import RequestKey
from onceward.db.short_id import short_ids
from onceward.errors import OncewardError
from onceward.tasks import fields
from onceward.tasks.attachment import MANAGED, Attachment, no_task
from onceward.tasks.check import LOCAL, holds
from onceward.tasks.fields import NewAttachment
from onceward.tasks.insert import Added, asked_before, insert
from onceward.tasks.labels import normal_labels

# Bytes that no row names are swept from an object store after an hour. Who stood still between seeing them there and
# naming them, as a machine that sleeps does, cannot be sure of them any more.
SURE_SECONDS = 1800.0


@record(frozen=True, slots=True)
class UploadRules:
    """What may be uploaded. Without `archive` no archive is looked into; an empty list allows every media type."""

    allowed_media_types: Sequence[str] = ()
    reject_media_type_mismatch: bool = True
    archive: ArchiveLimits | None = None


class _TooLateError(Exception):
    """Nothing is committed."""


@record(frozen=True, slots=True)
class _Blob:
    id: str
    backend: str
    key: str


# The task, and the blob with these bytes if there is one.
_LOOK = Plain("""
    SELECT blobs.id, blobs.storage_backend, blobs.blob_key
    FROM tasks LEFT JOIN blobs ON blobs.sha256 = :sha256
    WHERE tasks.id = :task_id
""")
_INSERT = Plain("""
    INSERT INTO blobs (id, sha256, size_bytes, storage_backend, blob_key, created_at, uploaded_at)
    VALUES (:id, :sha256, :size_bytes, :backend, :key, :at, :at)
    ON CONFLICT DO NOTHING
""")
# The row is locked from here to the commit, and counts as new: the collection leaves it alone. Bytes that were found
# missing are replaced by those that were just put, unless somebody else has done it meanwhile.
_USE = text("""
    UPDATE blobs SET
        uploaded_at = :at,
        storage_backend = CASE WHEN blob_key = :broken THEN :backend ELSE storage_backend END,
        blob_key = CASE WHEN blob_key = :broken THEN :key ELSE blob_key END
    WHERE sha256 = :sha256
    RETURNING id, storage_backend, blob_key
""")


def create_managed_attachment(
    database: Database,
    store: BlobStore,
    task_id: str,
    spool: Spool,
    new: NewAttachment,
    rules: UploadRules,
    request: RequestKey | None = None,
) -> Added:
    """Attach the bytes of a finished spool. When it raises there is no row, and nothing that anyone can see."""
    draft = _draft(task_id, spool, new, rules)
    if request is not None:
        with database.write() as tx:
            there = asked_before(tx, request)
        if there is not None:
            return Added(there, is_new=False)
    for blob_id in short_ids("bl"):
        known = _known(database, task_id, spool.sha256)
        added = _keep(database, store, spool, draft, blob_id, known, request)
        if added is not None:
            return added
    raise AssertionError  # `short_ids` raises by itself


def _draft(task_id: str, spool: Spool, new: NewAttachment, rules: UploadRules) -> Attachment:
    """Everything that can be refused is refused before a byte is kept."""
    kind, labels = fields.normal_kind(new.kind), normal_labels(new.labels)
    title, filename = fields.normal_title(new.title), fields.normal_filename(new.filename)
    fields.meta_text(new.meta)
    expires_at = fields.expiry(new.expires_at, datetime.datetime.now(datetime.UTC))
    sniffed = sniff(spool.path, filename)
    found = settle(sniffed, new.media_type, filename, reject_mismatch=rules.reject_media_type_mismatch)
    media_type = found.media_type or UNKNOWN
    # Both: a declaration or a file name may turn bytes that are off the list into a type that is on it.
    for asked, what in ((media_type, ""), (sniffed.content_type, ", which the content is,")):
        if not is_allowed(asked, rules.allowed_media_types):
            raise refused("media_type", f"{asked}{what} is not allowed here")
    meta = fields.said_meta(new.meta)
    if found.sniffed_media_type is not None:
        meta["sniffed_media_type"] = found.sniffed_media_type
    summary = None if rules.archive is None else inspect(spool.path, media_type, rules.archive)
    if summary is not None:
        meta["archive"] = dict(summary.as_meta())
    return Attachment(
        id="",
        task_id=task_id,
        kind=kind,
        source_type=MANAGED,
        title=title,
        filename=filename,
        media_type=media_type,
        media_type_source=found.source,
        blob_id="",
        external_url=None,
        repo_path=None,
        created_at="",
        updated_at="",
        expires_at=expires_at,
        meta=meta,
        labels=labels,
        sha256=spool.sha256,
        size_bytes=spool.size,
    )


def _keep(
    database: Database,
    store: BlobStore,
    spool: Spool,
    draft: Attachment,
    blob_id: str,
    known: _Blob | None,
    request: RequestKey | None,
) -> Added | None:
    """Keep the bytes, of which `known` is the blob that was there a moment ago. None when somebody came between and it
    has to be tried again.
    """
    usable = known is not None and known.backend == store.backend and _is_whole(store, known.key, spool)
    key = known.key if known is not None and usable else store.put(spool, blob_id)
    broken = "" if known is None or usable else known.key
    asked_at = time.time()

    def name_it(tx: Transaction) -> tuple[_Blob | None, Added | None]:
        blob = _use(tx, _Blob(blob_id, store.backend, key), spool, broken, may_insert=not usable)
        added = None if blob is None else insert(tx, draft, request, blob.id)
        if time.time() - asked_at > SURE_SECONDS:
            raise _TooLateError
        return blob, added

    def make_sure() -> None:
        store.ensure(spool, key)

    with contextlib.suppress(_TooLateError):
        if store.backend == LOCAL:
            # Bytes that nobody names after all are left to the sweep: another upload may be about to name them.
            return database.together(store.guarded, make_sure, name_it)[1]
        with store.guarded():
            make_sure()
            with database.write() as tx:
                blob, added = name_it(tx)
        if blob is None or blob.key != key:
            # Committed without this key, so nobody ever names it. (An error above leaves it to the sweep: it may have
            # been committed.)
            with contextlib.suppress(OncewardError):
                store.discard(key)
        return added
    return None


def _is_whole(store: BlobStore, key: str, spool: Spool) -> bool:
    """Whether the bytes that are there are these. Those of a file may have been changed by anybody, so they are read;
    an object store keeps checksums of its own. Damaged ones are put aside.
    """
    if store.size(key) != spool.size:
        return False
    if store.backend != LOCAL or holds(store, key, spool.sha256):
        return True
    with store.guarded():
        if not holds(store, key, spool.sha256):
            store.quarantine(key)
    return False


def _known(database: Database, task_id: str, sha256: str) -> _Blob | None:
    """`NotFound` when there is no such task."""
    found = database.rows(_LOOK, {"task_id": task_id, "sha256": sha256})
    if not found:
        raise no_task(task_id)
    return None if found[0][0] is None else _Blob(*found[0])


def _use(tx: Transaction, new: _Blob, spool: Spool, broken: str, *, may_insert: bool) -> _Blob | None:
    values = {
        "id": new.id,
        "sha256": spool.sha256,
        "size_bytes": spool.size,
        "backend": new.backend,
        "key": new.key,
        "at": now_text(),
    }
    if may_insert and not broken and _INSERT.count(tx, values) == 1:
        return new
    row = tx.execute(_USE, {**values, "broken": broken}).one_or_none()
    return None if row is None else _Blob(*row)
