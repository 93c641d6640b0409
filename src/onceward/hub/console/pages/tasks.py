"""Tasks: the newest ones, and one task with its attachments. Both have forms to create what they list."""

from __future__ import annotations

import contextlib
from typing import Any

from starlette.responses import JSONResponse, Response

from onceward.core.json_text import refused
from onceward.errors import InvalidInput, NotFound
from onceward.hub import tasks
from onceward.hub.console.attachments.keyed_form import (
    attachment_of_form,
    form_conflict,
    form_of,
    form_request_key,
    new_key,
    require_same,
)
from onceward.hub.console.forms import Form, problem_of
from onceward.hub.console.rendering import url
from onceward.hub.console.visit import Visit, see_other
from onceward.hub.db.page import RowPage
from onceward.hub.db.timestamps import now_text
from onceward.hub.db_threads import in_thread
from onceward.hub.tasks import Task, TaskAttachment
from onceward.hub.tasks.validation import KINDS, normal_filename
from onceward.hub.web.upload import AttachmentUpload

_LIMIT = 100
# Labels that the filter offers. The others are in the URL of their chips.
_LABELS_MAX = 30
_NOTICES = {
    "created": "The task is created. Attach a file to it.",
    "deleted": "The task and its attachments are deleted.",
    "attached": "The file is attached.",
    "attached-all": "The files are attached.",
    "linked": "The link is attached.",
    "again": "This form was sent twice. It is stored once.",
    "removed": "The attachment is removed.",
}


async def show(visit: Visit) -> Response:
    """Show the newest tasks."""
    return await _list(visit)


async def _list(visit: Visit, *, form: Form | None = None, problem: str = "", status: int = 200) -> Response:
    hub, after = visit.hub, visit.query("after")

    def read() -> RowPage[Task]:
        with hub.database.read() as tx:
            return tasks.list_tasks(tx, _LIMIT, after)

    page = await in_thread(read)
    return await visit.page(
        "tasks.html",
        status,
        tasks=page.items,
        after=page.next_after,
        is_later=bool(after),
        **_shown_form(visit, form, problem),
    )


async def create(visit: Visit, form: Form) -> Response:
    """Create a task, once for each form."""
    title, spec_id = form.text("title"), form.text("spec_id") or None
    key = form_request_key(visit, form)
    try:
        task = await visit.hub.database.writer.run(
            lambda tx: tasks.create_task(tx, title, spec_id=spec_id, request=key), ("task", "")
        )
    except InvalidInput as error:
        return await _list(visit, form=form, problem=problem_of(error), status=400)
    if (task.title, task.spec_id) != (title, spec_id):
        raise form_conflict(f"task {task.id}")
    return see_other(url(f"tasks/{task.id}", notice="created"))


async def show_one(visit: Visit) -> Response:
    """Show one task with its newest attachments, or those that match the filter."""
    return await _page(visit)


async def ask_delete(visit: Visit) -> Response:
    """Show one task, and ask whether to delete it."""
    return await _page(visit, asks=True)


async def _page(
    visit: Visit, *, asks: bool = False, form: Form | None = None, problem: str = "", status: int = 200
) -> Response:
    hub, task_id = visit.hub, _id(visit)
    kind, label, after = (visit.query(name) for name in ("kind", "label", "after"))

    def read() -> tuple[Task, RowPage[TaskAttachment], list[str]]:
        with hub.database.read() as tx:
            return (
                tasks.get_task(tx, task_id),
                tasks.list_attachments(tx, task_id, _LIMIT, after, kind=kind, label=label),
                tasks.labels_of_task(tx, task_id, _LABELS_MAX),
            )

    task, page, labels = await in_thread(read)
    return await visit.page(
        "task.html",
        status,
        task=task,
        attachments=page.items,
        after=page.next_after,
        is_later=bool(after),
        kind=kind,
        label=label,
        labels=labels,
        kinds=KINDS,
        asks=asks,
        at=now_text(),
        max_bytes=hub.config.attachments.max_upload_bytes,
        **_shown_form(visit, form, problem),
    )


async def attach(visit: Visit, received: AttachmentUpload) -> Response:
    """Attach a file, once for each form."""
    upload, form, task_id = received.upload, form_of(received.upload), _id(visit)
    try:
        if normal_filename(upload.filename) is None:
            # A browser sends an empty file without a name if none was chosen.
            raise refused("content", "is missing: choose a file")
        new = attachment_of_form(form, upload.filename)
        added = await received.attach(task_id, new, visit.hub.upload_rules, form_request_key(visit, form))
    except InvalidInput as error:
        if visit.is_script:
            raise
        return await _page(visit, form=form, problem=problem_of(error), status=400)
    if not added.is_new:
        sent = upload.temp_file
        require_same(added.attachment, task_id, new, sha256=None if sent is None else sent.sha256)
    if visit.is_script:
        return JSONResponse({"id": added.attachment.id, "is_new": added.is_new}, 201)
    return see_other(url(f"tasks/{task_id}", notice="attached" if added.is_new else "again"))


async def link(visit: Visit, form: Form) -> Response:
    """Attach a URL or a path in a repository, once for each form."""
    hub, task_id, new = visit.hub, _id(visit), attachment_of_form(form)
    where = form.text("where")
    is_url = where.lower().startswith(("http://", "https://"))
    target = {"external_url": where} if is_url else {"repo_path": where}
    key = form_request_key(visit, form)
    try:
        if not where:
            raise refused("where", "is missing: give a URL, or a path in the repository")
        added = await hub.database.writer.append(
            lambda tx: tasks.create_link_attachment.steps(
                tx, task_id, new, **target, allowed_media_types=hub.upload_rules.allowed_media_types, request=key
            ),
            ("task", task_id),
        )
    except InvalidInput as error:
        return await _page(visit, form=form, problem=problem_of(error), status=400)
    if not added.is_new:
        require_same(added.attachment, task_id, new, **target)
    return see_other(url(f"tasks/{task_id}", notice="linked" if added.is_new else "again"))


async def delete(visit: Visit, _form: Form) -> Response:
    """Delete a task with its attachments. A form that is sent twice finds it deleted, which is what it asks for."""
    hub, task_id = visit.hub, _id(visit)
    with contextlib.suppress(NotFound):
        await hub.database.writer.append(lambda tx: tasks.delete_task.steps(tx, task_id), ("task", task_id))
    return see_other(url("tasks", notice="deleted"))


def _shown_form(visit: Visit, form: Form | None, problem: str) -> dict[str, Any]:
    """Return the variables of the forms: a new key, the fields that were refused and the reason, and the notice."""
    fields = {} if form is None else {name: values[0] for name, values in form.fields.items() if values}
    empty = dict.fromkeys(("title", "spec_id", "kind", "labels", "expires_at", "where"), "")
    notice = _NOTICES.get(visit.query("notice"), "")
    return {"new_key": new_key, "fields": {**empty, **fields}, "problem": problem, "notice": notice}


def _id(visit: Visit) -> str:
    found: str = visit.request.path_params["task_id"]
    return found
