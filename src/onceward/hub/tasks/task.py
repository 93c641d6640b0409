"""Tasks: an id, a title and an optional spec. They exist here to carry attachments."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass

from sqlalchemy import bindparam, select, text, tuple_

from onceward.core.json_text import checked, refused
from onceward.errors import AlreadyThere
from onceward.hub.db.append import Appending, EventSteps
from onceward.hub.db.engine import Transaction
from onceward.hub.db.page import LIMIT_MAX, RowPage, page_of, parse_cursor
from onceward.hub.db.request_key import RequestKey
from onceward.hub.db.short_id import short_ids
from onceward.hub.db.tables import tasks
from onceward.hub.db.timestamps import now_text
from onceward.hub.tasks.attachment import no_task, removed_event, rows_of_task
from onceward.hub.tasks.quota import give_back

TITLE_BYTES_MAX = 512
SPEC_BYTES_MAX = 1024
ID_PATTERN = r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}"
_ID = re.compile(ID_PATTERN, re.ASCII)


@dataclass(frozen=True, slots=True)
class Task:
    id: str
    title: str
    spec_id: str | None
    created_at: str
    updated_at: str


_COLUMNS = (tasks.c.id, tasks.c.title, tasks.c.spec_id, tasks.c.created_at, tasks.c.updated_at)
_INSERT = text("""
    INSERT INTO tasks (id, title, spec_id, created_at, updated_at, request_key)
    VALUES (:id, :title, :spec_id, :created_at, :updated_at, :request_key)
    ON CONFLICT DO NOTHING
""")
_FREE = text("UPDATE tasks SET request_key = NULL WHERE request_key = :request_key AND created_at < :kept_since")
_ASKED = select(*_COLUMNS).where(tasks.c.request_key == bindparam("request_key"))
_ONE = select(*_COLUMNS).where(tasks.c.id == bindparam("id"))
_LOCK = text("SELECT id FROM tasks WHERE id = :id FOR UPDATE")
_NEWEST = select(*_COLUMNS).order_by(tasks.c.created_at.desc(), tasks.c.id.desc()).limit(bindparam("limit"))
_OLDER = _NEWEST.where(tuple_(tasks.c.created_at, tasks.c.id) < tuple_(bindparam("at"), bindparam("id")))
# A cursor is the created_at and the id of the last row of a page.
_PLACE = re.compile(rf"(\d{{4}}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{{6}}Z)~({_ID.pattern})", re.ASCII)
_DETACH = text("DELETE FROM attachments WHERE task_id = :id RETURNING id, principal")
_DELETE = text("DELETE FROM tasks WHERE id = :id")


def create_task(
    tx: Transaction,
    title: str,
    *,
    task_id: str | None = None,
    spec_id: str | None = None,
    request: RequestKey | None = None,
) -> Task:
    """Create a task; `AlreadyThere` if its id is taken. A repeated request returns the task of its first run."""
    title = checked("title", title, TITLE_BYTES_MAX)
    spec_id = None if spec_id is None else checked("spec_id", spec_id, SPEC_BYTES_MAX)
    if task_id is not None and not _ID.fullmatch(task_id):
        raise refused("id", "must be 1 to 128 characters from A-Z a-z 0-9 . _ - and begin with a letter or digit")
    mark = None if request is None else {"request_key": request.digest}
    if request is not None and request.kept_since:
        tx.execute(_FREE, {"request_key": request.digest, "kept_since": request.kept_since})
    for one in [task_id] if task_id is not None else short_ids("tk"):
        at = now_text()
        task = Task(one, title, spec_id, at, at)
        if tx.execute(_INSERT, {**asdict(task), "request_key": None, **(mark or {})}).rowcount == 1:
            return task
        there = None if mark is None else tx.execute(_ASKED, mark).one_or_none()
        if there is not None:
            return Task(*there)
    raise AlreadyThere(f"task {task_id!r} already exists")


def get_task(tx: Transaction, task_id: str) -> Task:
    row = tx.execute(_ONE, {"id": task_id}).one_or_none()
    if row is None:
        raise no_task(task_id)
    return Task(*row)


def list_tasks(tx: Transaction, limit: int, after: str = "") -> RowPage[Task]:
    """Return a page of tasks after the cursor, newest first. Attachments are not read."""
    limit = min(limit, LIMIT_MAX)
    asked: dict[str, object] = {"limit": limit + 1}
    if after:
        place = parse_cursor(after, _PLACE)
        asked |= {"at": place[1], "id": place[2]}
    found = [Task(*row) for row in tx.execute(_OLDER if after else _NEWEST, asked)]
    return page_of(found, limit, lambda task: f"{task.created_at}~{task.id}")


@Appending
def delete_task(tx: Transaction, task_id: str) -> EventSteps[int]:
    """Delete a task and its attachments, append an event for each attachment, and return their number.

    Gc deletes the blobs later.
    """
    if tx.dialect.name != "sqlite":
        # From here on no attachment can be added: its foreign key waits for this lock.
        tx.execute(_LOCK, {"id": task_id})
    attached = rows_of_task(tx, task_id)
    # Deleted here, not by the foreign key's cascade: if another transaction has just deleted an attachment, that
    # transaction has appended the event.
    gone = {row.id: row.principal for row in tx.execute(_DETACH, {"id": task_id})}
    if tx.execute(_DELETE, {"id": task_id}).rowcount == 0:
        raise no_task(task_id)
    give_back(tx, [(gone.get(attachment.id), attachment.size_bytes) for attachment in attached])
    yield [removed_event(attachment) for attachment in attached if attachment.id in gone]
    return len(gone)
