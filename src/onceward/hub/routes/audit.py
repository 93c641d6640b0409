"""The audit log over HTTP, for admins."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, Field

from onceward.core.json_text import written
from onceward.hub.audit.filter import audit_filter
from onceward.hub.audit.log import audit_page
from onceward.hub.state import hub_of
from onceward.hub.web.json_body import StrictRoute
from onceward.hub.web.pagination import LIMIT_DEFAULT, After, Limit, PageShown, paged

router = APIRouter(prefix="/api/v1/audit", route_class=StrictRoute, tags=["audit"])


class AuditShown(BaseModel):
    audit_id: int
    created_at: str
    principal: str = Field(
        description="The name of the token; for a command, of the user of the machine; for a job, `hub`."
    )
    token_id: str | None
    client: str | None = Field(description="The client's address. Null for a command on the data, and for a job.")
    source: Literal["api", "console", "command", "job"]
    request_id: str | None
    action: str = Field(description="The action, such as `claim.resolve`.")
    target: str | None = Field(description="The object: an id, a name, or scope and key of a claim.")
    details: dict[str, Any]
    result: Literal["started", "done", "refused", "unknown"] = Field(
        description="`started` is written before an action outside the database; another entry then has its result."
    )
    started_id: int | None = Field(description="The entry that this one is the result of.")


class AuditList(PageShown):
    entries: list[AuditShown]


_TEXT_MAX = 512
PrincipalAsked = Annotated[str, Query(max_length=_TEXT_MAX, description="Only entries of this principal.")]
ActionAsked = Annotated[
    str,
    Query(
        max_length=_TEXT_MAX, description="Only this action, such as `claim.resolve`, or all that begin with `claim.`"
    ),
]
Since = Annotated[str, Query(max_length=64, description="The earliest date or time (RFC 3339).")]
Until = Annotated[
    str, Query(max_length=64, description="The last date, or the first time that is too late (RFC 3339).")
]


@router.get("", response_model=AuditList, summary="List the audit log, newest first")
def list_audit(
    request: Request,
    limit: Limit = LIMIT_DEFAULT,
    after: After = "",
    principal: PrincipalAsked = "",
    action: ActionAsked = "",
    since: Since = "",
    until: Until = "",
) -> Response:
    only = audit_filter(principal, action, since, until)
    with hub_of(request).database.read() as tx:
        page = audit_page(tx, limit, after, only)
    content = written({"entries": [row.json() for row in page.items], **paged(page)})
    return Response(content, media_type="application/json")
