"""The audit log: who did what, when, and with what result."""

from __future__ import annotations

from starlette.responses import Response

from onceward.hub.audit.log import AuditRow, audit_page
from onceward.hub.console.visit import Visit
from onceward.hub.db.page import RowPage
from onceward.hub.db_threads import in_thread

_LIMIT = 100


async def show(visit: Visit) -> Response:
    """Show the newest rows."""
    hub, after = visit.hub, visit.query("after")

    def read() -> RowPage[AuditRow]:
        with hub.database.read() as tx:
            return audit_page(tx, _LIMIT, after)

    page = await in_thread(read)
    return await visit.page("audit.html", rows=page.items, after=page.next_after, is_later=bool(after))
