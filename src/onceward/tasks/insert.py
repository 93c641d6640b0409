"""Inserting an attachment: one statement looks for the task and inserts, and the row carries its request."""

from __future__ import annotations

import dataclasses

from sqlalchemy import text

from onceward.core.record import record
from onceward.core.text import compact
from onceward.db.clock import now_text
from onceward.db.engine import Transaction
from onceward.db.plain import Plain
from onceward.db.request import RequestKey
from onceward.db.short_id import short_ids
from onceward.events.log import append
from onceward.tasks import fields
from onceward.tasks.attachment import Attachment, added_event, get_attachment, label_all, require_task

_INSERT = """
    INSERT INTO attachments (
        id, task_id, kind, source_type, title, filename, media_type, media_type_source, blob_id, external_url,
        repo_path, meta_json, created_at, updated_at, expires_at, request_key
    )
    SELECT CAST(:id AS TEXT), tasks.id, CAST(:kind AS TEXT), CAST(:source_type AS TEXT), CAST(:title AS TEXT),
        CAST(:filename AS TEXT), CAST(:media_type AS TEXT), CAST(:media_type_source AS TEXT), CAST(:blob_id AS TEXT),
        CAST(:external_url AS TEXT), CAST(:repo_path AS TEXT), CAST(:meta_json AS TEXT), CAST(:created_at AS TEXT),
        CAST(:updated_at AS TEXT), CAST(:expires_at AS TEXT), CAST(:request_key AS TEXT)
    FROM tasks WHERE tasks.id = :task_id {locked}
    ON CONFLICT DO NOTHING
"""
_INSERT_SQLITE = Plain(_INSERT.format(locked=""))
# Whoever is deleting the task is waited for here; its foreign key would wait as well, and then be an error.
_INSERT_POSTGRES = Plain(_INSERT.format(locked="FOR KEY SHARE"))
_FREE = text("UPDATE attachments SET request_key = NULL WHERE request_key = :request_key AND created_at < :kept_since")
_ASKED = text("SELECT id FROM attachments WHERE request_key = :request_key")


@record(frozen=True, slots=True)
class Added:
    """What came of it: `is_new` is False when an earlier run of the same request had made it."""

    attachment: Attachment
    is_new: bool


def asked_before(tx: Transaction, request: RequestKey | None) -> Attachment | None:
    """The attachment that an earlier run of the same request made."""
    if request is None:
        return None
    if request.kept_since:
        tx.execute(_FREE, {"request_key": request.digest, "kept_since": request.kept_since})
    found = tx.execute(_ASKED, {"request_key": request.digest}).scalar()
    return None if found is None else get_attachment(tx, found)


def insert(tx: Transaction, draft: Attachment, request: RequestKey | None, blob_id: str | None = None) -> Added:
    """Insert it under a free id, with its labels and its event: the last step of the transaction."""
    there = asked_before(tx, request)
    if there is not None:
        return Added(there, is_new=False)
    statement = _INSERT_SQLITE if tx.dialect.name == "sqlite" else _INSERT_POSTGRES
    for one in short_ids("at"):
        at = now_text()
        if draft.is_expired(at):  # it was not when it came; it has waited since
            raise fields.past()
        attachment = dataclasses.replace(draft, id=one, created_at=at, updated_at=at, blob_id=blob_id)
        if statement.count(tx, _row(attachment, request)) == 1:
            label_all(tx, attachment.id, attachment.labels)
            append(tx, [added_event(attachment)])
            return Added(attachment, is_new=True)
        there = asked_before(tx, request)
        if there is not None:
            return Added(there, is_new=False)
        require_task(tx, draft.task_id)
    raise AssertionError  # `short_ids` raises by itself


def _row(attachment: Attachment, request: RequestKey | None) -> dict[str, object]:
    row = {name: getattr(attachment, name) for name in Attachment.__slots__}
    row["meta_json"] = compact(attachment.meta) if attachment.meta else None
    row["request_key"] = None if request is None else request.digest
    for name in ("meta", "labels", "sha256", "size_bytes"):
        del row[name]
    return row
