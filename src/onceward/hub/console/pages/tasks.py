"""Tasks: the newest ones, and one task with its attachments."""

from __future__ import annotations

from starlette.responses import Response

from onceward.hub.console.visit import Visit
from onceward.hub.db.page import RowPage
from onceward.hub.tasks import Task, TaskAttachment, get_task, list_attachments, list_tasks
from onceward.hub.turns.model.db_threads import in_thread

_LIMIT = 100


async def show(visit: Visit) -> Response:
    """Show the newest tasks."""
    hub, after = visit.hub, visit.query("after")

    def read() -> RowPage[Task]:
        with hub.database.read() as tx:
            return list_tasks(tx, _LIMIT, after)

    page = await in_thread(read)
    return await visit.page("tasks.html", tasks=page.items, after=page.next_after, is_later=bool(after))


async def show_one(visit: Visit) -> Response:
    """Show one task with its newest attachments."""
    hub, task_id = visit.hub, visit.request.path_params["task_id"]

    def read() -> tuple[Task, RowPage[TaskAttachment]]:
        with hub.database.read() as tx:
            return get_task(tx, task_id), list_attachments(tx, task_id, _LIMIT)

    task, attachments = await in_thread(read)
    return await visit.page("task.html", task=task, attachments=attachments)
