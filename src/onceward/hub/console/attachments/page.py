"""One attachment: its fields, its preview, its content, its labels, and its removal."""

from __future__ import annotations

from starlette.responses import Response

from onceward.errors import NotFound
from onceward.hub import tasks
from onceward.hub.console.attachments.keyed_form import labels_of
from onceward.hub.console.attachments.preview import Preview, preview_of
from onceward.hub.console.forms import Form
from onceward.hub.console.rendering import url
from onceward.hub.console.visit import Visit, see_other
from onceward.hub.db.timestamps import now_text
from onceward.hub.db_threads import in_thread
from onceward.hub.tasks import Task, TaskAttachment
from onceward.hub.web.download import content_response, is_inline

NOTICES = {"labelled": "The labels are replaced."}


async def show(visit: Visit) -> Response:
    """Show one attachment."""
    return await _page(visit)


async def ask_remove(visit: Visit) -> Response:
    """Show one attachment, and ask whether to remove it."""
    return await _page(visit, asks=True)


async def _page(visit: Visit, *, asks: bool = False) -> Response:
    hub = visit.hub

    def read() -> tuple[TaskAttachment, Task, Preview | None]:
        with hub.database.read() as tx:
            found = tasks.get_attachment(tx, _id(visit))
            task = tasks.get_task(tx, found.task_id)
            has_content = found.blob_id is not None and not found.is_expired(now_text())
            content = tasks.open_content(tx, found.id) if has_content else None
        return found, task, None if content is None else preview_of(content, hub.blobs)

    attachment, task, preview = await in_thread(read)
    return await visit.page(
        "attachment.html",
        one=attachment,
        task=task,
        preview=preview,
        asks=asks,
        is_managed=attachment.blob_id is not None,
        is_expired=attachment.is_expired(now_text()),
        is_inline=is_inline(attachment),
        notice=NOTICES.get(visit.query("notice"), ""),
    )


async def content(visit: Visit) -> Response:
    """Send the bytes, whole or a range, with the headers of the API's own content."""
    hub, request = visit.hub, visit.request

    def read() -> Response:
        with hub.database.read() as tx:
            found = tasks.open_content(tx, _id(visit))
        range_, if_range, if_none_match = map(request.headers.get, ("range", "if-range", "if-none-match"))
        return content_response(found, hub.blobs, request.method, range_, if_range, if_none_match)

    return await in_thread(read)


async def relabel(visit: Visit, form: Form) -> Response:
    """Replace the labels."""
    attachment_id, labels = _id(visit), labels_of(form.text("labels"))
    await visit.hub.database.writer.run(
        lambda tx: tasks.replace_labels(tx, attachment_id, labels), ("task attachment", attachment_id)
    )
    return see_other(url(f"attachments/{attachment_id}", notice="labelled"))


async def remove(visit: Visit, form: Form) -> Response:
    """Remove the attachment. A form that is sent twice finds it removed, which is what it asks for."""
    attachment_id, task_id = _id(visit), form.text("task_id")
    hub = visit.hub
    try:
        removed = await hub.database.writer.append(
            lambda tx: tasks.delete_attachment.steps(tx, attachment_id), ("task attachment", attachment_id)
        )
    except NotFound:

        def read() -> Task:
            with hub.database.read() as tx:
                return tasks.get_task(tx, task_id)

        task_id = (await in_thread(read)).id
    else:
        task_id = removed.task_id
    return see_other(url(f"tasks/{task_id}", notice="removed"))


def _id(visit: Visit) -> str:
    found: str = visit.request.path_params["attachment_id"]
    return found
