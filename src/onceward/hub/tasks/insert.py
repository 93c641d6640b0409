"""Insert of an attachment: one statement finds the task and inserts the row, which records its request key."""

from __future__ import annotations

import dataclasses

from sqlalchemy import text

from onceward.core.json_text import compact
from onceward.core.record import record
from onceward.hub.db.append import EventSteps
from onceward.hub.db.engine import Transaction
from onceward.hub.db.raw_sql import RawStatement
from onceward.hub.db.request_key import RequestKey
from onceward.hub.db.short_id import short_ids
from onceward.hub.db.timestamps import now_text
from onceward.hub.tasks import validation
from onceward.hub.tasks.attachment import TaskAttachment, added_event, get_attachment, label_all, require_task
from onceward.hub.tasks.quota import Quota, take

_INSERT = """
    INSERT INTO attachments (
        id, task_id, kind, source_type, title, filename, media_type, media_type_source, blob_id, external_url,
        repo_path, meta_json, created_at, updated_at, expires_at, request_key, principal
    )
    SELECT CAST(:id AS TEXT), tasks.id, CAST(:kind AS TEXT), CAST(:source_type AS TEXT), CAST(:title AS TEXT),
        CAST(:filename AS TEXT), CAST(:media_type AS TEXT), CAST(:media_type_source AS TEXT), CAST(:blob_id AS TEXT),
        CAST(:external_url AS TEXT), CAST(:repo_path AS TEXT), CAST(:meta_json AS TEXT), CAST(:created_at AS TEXT),
        CAST(:updated_at AS TEXT), CAST(:expires_at AS TEXT), CAST(:request_key AS TEXT),
        CAST(:principal AS TEXT)
    FROM tasks WHERE tasks.id = :task_id {locked}
    ON CONFLICT DO NOTHING
"""
_INSERT_SQLITE = RawStatement(_INSERT.format(locked=""))
# Wait here for a transaction that deletes the task. Without this lock the foreign key would wait, and then fail.
_INSERT_POSTGRES = RawStatement(_INSERT.format(locked="FOR KEY SHARE"))
_FREE = text("UPDATE attachments SET request_key = NULL WHERE request_key = :request_key AND created_at < :kept_since")
_ASKED = text("SELECT id FROM attachments WHERE request_key = :request_key")


@record(frozen=True, slots=True)
class Added:
    """Result of an insert: `is_new` is False if an earlier run of the same request created the attachment."""

    attachment: TaskAttachment
    is_new: bool


def find_by_request(tx: Transaction, request: RequestKey | None) -> TaskAttachment | None:
    """Return the attachment that an earlier run of the same request created, if any."""
    if request is None:
        return None
    if request.kept_since:
        tx.execute(_FREE, {"request_key": request.digest, "kept_since": request.kept_since})
    found = tx.execute(_ASKED, {"request_key": request.digest}).scalar()
    return None if found is None else get_attachment(tx, found)


def insert(
    tx: Transaction,
    draft: TaskAttachment,
    request: RequestKey | None,
    blob_id: str | None = None,
    quota: Quota | None = None,
) -> EventSteps[Added]:
    """Insert an attachment under a free id, with its labels, count its bytes, and yield its event."""
    there = find_by_request(tx, request)
    if there is not None:
        return Added(there, is_new=False)
    statement = _INSERT_SQLITE if tx.dialect.name == "sqlite" else _INSERT_POSTGRES
    for one in short_ids("at"):
        at = now_text()
        if draft.is_expired(at):  # it was valid when the request arrived, and expired while this waited
            raise validation.past()
        attachment = dataclasses.replace(draft, id=one, created_at=at, updated_at=at, blob_id=blob_id)
        if statement.count(tx, _row(attachment, request, quota)) == 1:
            if quota is not None:
                take(tx, quota, attachment.size_bytes or 0)
            label_all(tx, attachment.id, attachment.labels)
            yield [added_event(attachment)]
            return Added(attachment, is_new=True)
        there = find_by_request(tx, request)
        if there is not None:
            return Added(there, is_new=False)
        require_task(tx, draft.task_id)
    raise AssertionError  # unreachable: `short_ids` raises when no id is free


def _row(attachment: TaskAttachment, request: RequestKey | None, quota: Quota | None) -> dict[str, object]:
    row = {name: getattr(attachment, name) for name in TaskAttachment.__slots__}
    row["meta_json"] = compact(attachment.meta) if attachment.meta else None
    row["request_key"] = None if request is None else request.digest
    row["principal"] = None if quota is None else quota.principal
    for name in ("meta", "labels", "sha256", "size_bytes"):
        del row[name]
    return row
