"""Attachments of a task: reading, listing, deleting and labelling. `upload.py` and `link.py` create them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import field
from typing import Any

from sqlalchemy import bindparam, select, text, tuple_

from onceward.core.canonical import Json
from onceward.core.json_text import compact
from onceward.core.record import record
from onceward.errors import NotFound
from onceward.hub.db.append import Appending, EventSteps, NewEvent
from onceward.hub.db.engine import Transaction
from onceward.hub.db.page import LIMIT_MAX, RowPage, page_of, parse_cursor
from onceward.hub.db.tables import attachment_labels, attachments, blobs
from onceward.hub.db.timestamps import now_text
from onceward.hub.tasks.quota import give_back
from onceward.hub.tasks.validation import normal_kind, normal_labels

ADDED = "task.attachment_added"
REMOVED = "task.attachment_removed"
MANAGED, URL, REPO = "managed_blob", "external_url", "repo_path"


@record(frozen=True, slots=True)
class TaskAttachment:
    """One attachment of a task, with its labels and the hash and size of its blob."""

    id: str
    task_id: str
    kind: str
    source_type: str
    title: str | None
    filename: str | None
    media_type: str | None
    media_type_source: str
    blob_id: str | None
    external_url: str | None
    repo_path: str | None
    created_at: str
    updated_at: str
    expires_at: str | None
    meta: dict[str, Json] = field(default_factory=dict)
    labels: tuple[str, ...] = ()
    # From the row of the blob; None for a link.
    sha256: str | None = None
    size_bytes: int | None = None

    def is_expired(self, at: str) -> bool:
        return self.expires_at is not None and self.expires_at <= at

    def json(self, at: str | None = None) -> dict[str, Any]:
        """Return the JSON fields for responses and events: empty fields are omitted, `labels` is always there."""
        values = {name: getattr(self, name) for name in TaskAttachment.__slots__}
        shown = {name: value for name, value in values.items() if value not in (None, {}, "")}
        shown["labels"] = list(self.labels)
        if self.is_expired(at or now_text()):
            shown["expired"] = True
        return shown


_a, _b = attachments.c, blobs.c
_SELECT = select(
    _a.id, _a.task_id, _a.kind, _a.source_type, _a.title, _a.filename, _a.media_type, _a.media_type_source,
    _a.blob_id, _a.external_url, _a.repo_path, _a.created_at, _a.updated_at, _a.expires_at, _a.meta_json,
    _b.sha256, _b.size_bytes,
).select_from(attachments.outerjoin(blobs, _b.id == _a.blob_id))  # fmt: skip
_ONE = _SELECT.where(_a.id == bindparam("id"))
_SOME = _SELECT.where(_a.id.in_(bindparam("ids", expanding=True)))
_OF_TASK = _SELECT.where(_a.task_id == bindparam("task_id")).order_by(_a.created_at.desc(), _a.id.desc())
_NEWEST = _OF_TASK.limit(bindparam("limit"))
_OLDER = _NEWEST.where(tuple_(_a.created_at, _a.id) < tuple_(bindparam("at"), bindparam("id")))
# A cursor is the created_at and the id of the last row of a page.
_PLACE = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z)~(at-[0-9a-z]{1,64})", re.ASCII)
_LABELS = select(attachment_labels.c.attachment_id, attachment_labels.c.label).where(
    attachment_labels.c.attachment_id.in_(bindparam("ids", expanding=True))
)
_LABELLED = (
    select(attachment_labels.c.attachment_id)
    .where(attachment_labels.c.attachment_id == _a.id, attachment_labels.c.label == bindparam("label"))
    .exists()
)
_LABELS_OF_TASK = (
    select(attachment_labels.c.label)
    .join(attachments, _a.id == attachment_labels.c.attachment_id)
    .where(_a.task_id == bindparam("task_id"))
    .distinct()
    .order_by(attachment_labels.c.label)
    .limit(bindparam("limit"))
)
_TASK = text("SELECT 1 FROM tasks WHERE id = :id")
_DELETE = text("DELETE FROM attachments WHERE id = :id RETURNING principal")
_UNLABEL = text("DELETE FROM attachment_labels WHERE attachment_id = :id")
_LABEL = text("INSERT INTO attachment_labels (attachment_id, label) VALUES (:id, :label)")
_TOUCH = text("UPDATE attachments SET updated_at = :at WHERE id = :id")
# Ids in one query. SQLite accepts more, but its number of parameters is limited.
_IDS_MAX = 500


def get_attachment(tx: Transaction, attachment_id: str) -> TaskAttachment:
    found = _with_labels(tx, tx.execute(_ONE, {"id": attachment_id}).all())
    if not found:
        raise no_attachment(attachment_id)
    return found[0]


def list_attachments(
    tx: Transaction, task_id: str, limit: int = LIMIT_MAX, after: str = "", *, kind: str = "", label: str = ""
) -> RowPage[TaskAttachment]:
    """Return a page of a task's attachments after the cursor, newest first; `NotFound` for an unknown task.

    With `kind` or `label`, only those that have it.
    """
    limit = min(limit, LIMIT_MAX)
    asked: dict[str, object] = {"task_id": task_id, "limit": limit + 1}
    statement = _NEWEST
    if after:
        place = parse_cursor(after, _PLACE)
        asked |= {"at": place[1], "id": place[2]}
        statement = _OLDER
    if kind:
        asked["kind"] = normal_kind(kind)
        statement = statement.where(_a.kind == bindparam("kind"))
    if label:
        (asked["label"],) = normal_labels([label])
        statement = statement.where(_LABELLED)
    found = _with_labels(tx, tx.execute(statement, asked).all())
    if not found:
        require_task(tx, task_id)
    return page_of(found, limit, lambda attachment: f"{attachment.created_at}~{attachment.id}")


def labels_of_task(tx: Transaction, task_id: str, limit: int) -> list[str]:
    """Return the labels that attachments of a task have, at most `limit` of them."""
    return sorted(tx.execute(_LABELS_OF_TASK, {"task_id": task_id, "limit": limit}).scalars())


def require_task(tx: Transaction, task_id: str) -> None:
    if tx.execute(_TASK, {"id": task_id}).scalar() is None:
        raise no_task(task_id)


def no_task(task_id: str) -> NotFound:
    return NotFound(f"task {task_id[:64]!r} does not exist")


def rows_of_task(tx: Transaction, task_id: str) -> list[TaskAttachment]:
    """Return all attachments of a task, newest first."""
    return _with_labels(tx, tx.execute(_OF_TASK, {"task_id": task_id}).all())


def attachments_of_ids(tx: Transaction, ids: Sequence[str]) -> list[TaskAttachment]:
    """Return the attachments that exist among these ids."""
    return _with_labels(tx, tx.execute(_SOME, {"ids": ids}).all())


@Appending
def delete_attachment(tx: Transaction, attachment_id: str) -> EventSteps[TaskAttachment]:
    """Delete an attachment and append its event. Gc deletes its blob later, when nothing else needs it."""
    attachment = get_attachment(tx, attachment_id)
    deleted = tx.execute(_DELETE, {"id": attachment_id}).one_or_none()
    if deleted is None:
        raise no_attachment(attachment_id)
    give_back(tx, [(deleted.principal, attachment.size_bytes)])
    yield [removed_event(attachment)]
    return attachment


def replace_labels(tx: Transaction, attachment_id: str, labels: Iterable[str]) -> TaskAttachment:
    """Replace the labels of an attachment."""
    wanted = normal_labels(labels)
    if tx.execute(_TOUCH, {"id": attachment_id, "at": now_text()}).rowcount == 0:
        raise no_attachment(attachment_id)
    tx.execute(_UNLABEL, {"id": attachment_id})
    label_all(tx, attachment_id, wanted)
    return get_attachment(tx, attachment_id)


def label_all(tx: Transaction, attachment_id: str, labels: Sequence[str]) -> None:
    if labels:
        tx.execute(_LABEL, [{"id": attachment_id, "label": label} for label in labels])


def added_event(attachment: TaskAttachment) -> NewEvent:
    return _event(ADDED, attachment)


def removed_event(attachment: TaskAttachment) -> NewEvent:
    return _event(REMOVED, attachment)


def no_attachment(attachment_id: str) -> NotFound:
    return NotFound(f"attachment {attachment_id[:64]!r} does not exist")


def _event(name: str, attachment: TaskAttachment) -> NewEvent:
    return NewEvent(name, None, "attachment", attachment.id, compact({"attachment": attachment.json()}))


def _with_labels(tx: Transaction, rows: Sequence[Any]) -> list[TaskAttachment]:
    labels: dict[str, list[str]] = {row[0]: [] for row in rows}
    ids = list(labels)
    for start in range(0, len(ids), _IDS_MAX):
        for attachment_id, label in tx.execute(_LABELS, {"ids": ids[start : start + _IDS_MAX]}):
            labels[attachment_id].append(label)
    return [_attachment(row, labels[row[0]]) for row in rows]


def _attachment(row: Any, labels: list[str]) -> TaskAttachment:
    *plain, meta_json, sha256, size_bytes = row
    known: dict[str, Any] = dict(zip(TaskAttachment.__slots__, plain, strict=False))
    return TaskAttachment(
        **known,
        meta=json.loads(meta_json) if meta_json else {},
        # Sorted here, because the collation depends on the database.
        labels=tuple(sorted(labels)),
        sha256=sha256,
        size_bytes=size_bytes,
    )
