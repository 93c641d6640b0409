"""Managed attachments: uploads whose bytes are stored as blobs, each content once.

The bytes are stored before the rows, so that no row ever references missing bytes. A folder has one name for each
content, and gc may delete that name at any time before the row exists. So an upload checks the name and commits the
row under the store's lock, and creates the name again if it is gone. In an object store every put has its own name,
and only the row of that put can reference it.
"""

from __future__ import annotations

import contextlib
import datetime
import time
from collections.abc import Sequence

from sqlalchemy import text

from onceward.core.json_text import refused
from onceward.core.record import record
from onceward.errors import OncewardError
from onceward.hub.archives import ArchiveLimits, inspect
from onceward.hub.blobs import BlobStore
from onceward.hub.blobs.folder import FolderBlobs
from onceward.hub.blobs.temp_file import TempFile
from onceward.hub.db.append import EventSteps
from onceward.hub.db.engine import Database, Transaction
from onceward.hub.db.raw_sql import RawStatement
from onceward.hub.db.request_key import RequestKey
from onceward.hub.db.short_id import short_ids
from onceward.hub.db.timestamps import now_text
from onceward.hub.media import is_allowed, settle, sniff
from onceward.hub.media.hierarchy import UNKNOWN
from onceward.hub.tasks import validation
from onceward.hub.tasks.attachment import MANAGED, TaskAttachment, no_task
from onceward.hub.tasks.fsck import holds
from onceward.hub.tasks.gc import discard_unreferenced
from onceward.hub.tasks.insert import Added, find_by_request, insert
from onceward.hub.tasks.quota import OverQuota, Quota
from onceward.hub.tasks.validation import NewTaskAttachment, normal_labels

# Gc deletes bytes without a row from an object store after an hour. An upload that pauses for longer than this between
# checking the bytes and committing the row (a suspended machine, for instance) starts again: the bytes may be gone.
SURE_SECONDS = 1800.0


@record(frozen=True, slots=True)
class UploadRules:
    """Limits on uploads. Without `archive`, archives are not inspected; an empty list allows every media type."""

    allowed_media_types: Sequence[str] = ()
    reject_media_type_mismatch: bool = True
    archive: ArchiveLimits | None = None


class _TooLateError(Exception):
    """The bytes may be gone by now; rolls back the transaction."""


@record(frozen=True, slots=True)
class _Blob:
    id: str
    backend: str
    key: str


# Find the task, the bytes that the principal uses, and the blob with these bytes if there is one.
_FIND = RawStatement("""
    SELECT stored_bytes.stored_bytes, blobs.id, blobs.storage_backend, blobs.blob_key
    FROM tasks
    LEFT JOIN stored_bytes ON stored_bytes.principal = :principal
    LEFT JOIN blobs ON blobs.sha256 = :sha256
    WHERE tasks.id = :task_id
""")
_INSERT = RawStatement("""
    INSERT INTO blobs (id, sha256, size_bytes, storage_backend, blob_key, created_at, uploaded_at)
    VALUES (:id, :sha256, :size_bytes, :backend, :key, :at, :at)
    ON CONFLICT DO NOTHING
""")
# This locks the row until the commit and makes it count as new, so that gc leaves it alone. If its bytes were missing
# or damaged, the row now references those that were just put, unless another upload has repaired it meanwhile.
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
    temp_file: TempFile,
    new: NewTaskAttachment,
    rules: UploadRules,
    request: RequestKey | None = None,
    quota: Quota | None = None,
) -> Added:
    """Attach the bytes of a finished temporary file. If this raises, no row was added and nothing is visible.

    With a `quota`, the bytes count for its principal, and `OverQuota` is raised if they do not fit.
    """
    draft = _draft(task_id, temp_file, new, rules)
    if request is not None and request.again:
        there = database.writer.run_blocking(lambda tx: find_by_request(tx, request))
        if there is not None:
            return Added(there, is_new=False)
    for blob_id in short_ids("bl"):
        known = _known(database, draft, temp_file, quota)
        added = _store_upload(database, store, temp_file, draft, blob_id, known, request, quota)
        if added is not None:
            return added
    raise AssertionError  # unreachable: `short_ids` raises when no id is free


def _draft(task_id: str, temp_file: TempFile, new: NewTaskAttachment, rules: UploadRules) -> TaskAttachment:
    """Validate the upload before any byte is stored, and return the attachment to insert."""
    kind, labels = validation.normal_kind(new.kind), normal_labels(new.labels)
    title, filename = validation.normal_title(new.title), validation.normal_filename(new.filename)
    validation.meta_text(new.meta)
    expires_at = validation.expiry(new.expires_at, datetime.datetime.now(datetime.UTC))
    sniffed = sniff(temp_file.path, filename)
    found = settle(sniffed, new.media_type, filename, reject_mismatch=rules.reject_media_type_mismatch)
    media_type = found.media_type or UNKNOWN
    # Check both: a declaration or a file name may give bytes of a forbidden type the name of an allowed one.
    for asked, what in ((media_type, ""), (sniffed.content_type, ", detected from the content,")):
        if not is_allowed(asked, rules.allowed_media_types):
            raise refused("media_type", f"{asked}{what} is not allowed")
    meta = validation.client_meta(new.meta)
    if found.sniffed_media_type is not None:
        meta["sniffed_media_type"] = found.sniffed_media_type
    summary = None if rules.archive is None else inspect(temp_file.path, media_type, rules.archive)
    if summary is not None:
        meta["archive"] = dict(summary.as_meta())
    return TaskAttachment(
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
        sha256=temp_file.sha256,
        size_bytes=temp_file.size,
    )


def _store_upload(
    database: Database,
    store: BlobStore,
    temp_file: TempFile,
    draft: TaskAttachment,
    blob_id: str,
    known: _Blob | None,
    request: RequestKey | None,
    quota: Quota | None,
) -> Added | None:
    """Store the bytes and insert the rows. `known` is the blob of this content, as read just before.

    Returns None if another process changed the blob meanwhile, so that the caller tries again.
    """
    usable = known is not None and known.backend == store.backend and _is_whole(store, known.key, temp_file)
    key = known.key if known is not None and usable else store.put(temp_file, blob_id)
    broken = "" if known is None or usable else known.key
    asked_at = time.time()

    def write_rows(tx: Transaction) -> EventSteps[tuple[_Blob | None, Added | None]]:
        blob = _use(tx, _Blob(blob_id, store.backend, key), temp_file, broken, may_insert=not usable)
        added = None if blob is None else (yield from insert(tx, draft, request, blob.id, quota))
        if time.time() - asked_at > SURE_SECONDS:
            raise _TooLateError
        return blob, added

    with contextlib.suppress(_TooLateError):
        try:
            with store.lock_shared():
                store.ensure(temp_file, key)
                blob, added = database.writer.append_blocking(write_rows, ("blob", temp_file.sha256))
        except OverQuota:
            # Another upload of the same principal was faster. These bytes are stored already, without a row.
            with contextlib.suppress(OncewardError):
                discard_unreferenced(database, store, key)
            raise
        if store.backend != FolderBlobs.backend and (blob is None or blob.key != key):
            # The commit did not use this key, so nothing will ever reference it. (After an error above it is left to
            # gc, because the transaction may have been committed.) In a folder, another upload may be about to
            # reference the same bytes.
            with contextlib.suppress(OncewardError):
                store.discard(key)
        return added
    return None


def _is_whole(store: BlobStore, key: str, temp_file: TempFile) -> bool:
    """Return whether the stored bytes equal those of the temporary file; damaged bytes go into quarantine.

    Other programs may have changed a file in a folder, so it is read and hashed. An object store has its own checksums.
    """
    if store.size(key) != temp_file.size:
        return False
    if store.backend != FolderBlobs.backend or holds(store, key, temp_file.sha256):
        return True
    with store.lock():
        if not holds(store, key, temp_file.sha256):
            store.quarantine(key)
    return False


def _known(database: Database, draft: TaskAttachment, temp_file: TempFile, quota: Quota | None) -> _Blob | None:
    """Return the blob of this content, if any; `NotFound` for an unknown task, `OverQuota` if it does not fit."""
    principal = None if quota is None else quota.principal
    found = database.rows(_FIND, {"task_id": draft.task_id, "sha256": temp_file.sha256, "principal": principal})
    if not found:
        raise no_task(draft.task_id)
    used_bytes, *blob = found[0]
    if quota is not None:
        quota.check(used_bytes or 0, temp_file.size)
    return None if blob[0] is None else _Blob(*blob)


def _use(tx: Transaction, new: _Blob, temp_file: TempFile, broken: str, *, may_insert: bool) -> _Blob | None:
    values = {
        "id": new.id,
        "sha256": temp_file.sha256,
        "size_bytes": temp_file.size,
        "backend": new.backend,
        "key": new.key,
        "at": now_text(),
    }
    if may_insert and not broken and _INSERT.count(tx, values) == 1:
        return new
    row = tx.execute(_USE, {**values, "broken": broken}).one_or_none()
    return None if row is None else _Blob(*row)
