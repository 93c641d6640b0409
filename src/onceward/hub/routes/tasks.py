"""Task routes: tasks, their attachments, and the attachments' bytes."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Header, Path, Request, Response
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from onceward.core.canonical import Json
from onceward.core.json_text import refused
from onceward.errors import InvalidInput
from onceward.hub import tasks
from onceward.hub.db.timestamps import now_text
from onceward.hub.security.auth import may, principal_of
from onceward.hub.state import hub_of, request_key_of
from onceward.hub.tasks import NewTaskAttachment, UploadRules
from onceward.hub.web.download import content_response
from onceward.hub.web.json_body import StrictRoute, parse
from onceward.hub.web.pagination import LIMIT_DEFAULT, After, Limit, PageShown, paged
from onceward.hub.web.task_bodies import UPLOAD, LabelsSent, LinkSent, TaskSent
from onceward.hub.web.upload import Upload, receive_attachment

router = APIRouter(prefix="/v1", route_class=StrictRoute, tags=["tasks"])

TaskId = Annotated[str, Path(description="The id of a task.", max_length=255)]
AttachmentId = Annotated[str, Path(description="The id of an attachment.", max_length=255)]

_FIELDS = frozenset(
    {"kind", "title", "expires_at", "media_type", "labels", "labels[]", "meta", "reject_media_type_mismatch"}
)


class TaskShown(BaseModel):
    id: str
    title: str
    spec_id: str | None = None
    created_at: str
    updated_at: str


class TaskList(PageShown):
    tasks: list[TaskShown]
    next: str | None = Field(None, deprecated=True, description="The same as `next_after`; absent on the last page.")


class AttachmentShown(BaseModel):
    """An attachment of a task. Empty fields are omitted, except `labels`."""

    id: str
    task_id: str
    kind: str
    source_type: str
    title: str | None = None
    filename: str | None = None
    media_type: str | None = None
    media_type_source: str
    blob_id: str | None = None
    external_url: str | None = None
    repo_path: str | None = None
    sha256: str | None = None
    size_bytes: int | None = None
    meta: dict[str, Any] | None = None
    labels: list[str]
    created_at: str
    updated_at: str
    expires_at: str | None = None
    expired: bool | None = None


class AttachmentList(PageShown):
    attachments: list[AttachmentShown]


class Removed(BaseModel):
    id: str


@router.post("/tasks", status_code=201, response_model=TaskShown, summary="Create a task")
async def make_task(sent: TaskSent, request: Request) -> Response:
    key = request_key_of(request)
    task = await hub_of(request).database.writer.run(
        lambda tx: tasks.create_task(tx, sent.title, task_id=sent.id, spec_id=sent.spec_id, request=key),
        ("task", sent.id or ""),
    )
    return _json(_task(task), 201)


@router.get("/tasks", response_model=TaskList, summary="List tasks, newest first")
def list_tasks(request: Request, limit: Limit = LIMIT_DEFAULT, after: After = "") -> Response:
    with hub_of(request).database.read() as tx:
        page = tasks.list_tasks(tx, limit, after)
    # Clients of earlier versions read `next`; without it they would stop after the first page.
    older = {"next": page.next_after} if page.has_more else {}
    return _json({"tasks": [_task(task) for task in page.items], **paged(page), **older})


@router.get("/tasks/{task_id}", response_model=TaskShown, summary="Get a task")
def get_task(task_id: TaskId, request: Request) -> Response:
    with hub_of(request).database.read() as tx:
        return _json(_task(tasks.get_task(tx, task_id)))


@router.delete("/tasks/{task_id}", response_model=Removed, summary="Delete a task and its attachments")
async def delete_task(task_id: TaskId, request: Request) -> Response:
    writer = hub_of(request).database.writer
    await writer.append(lambda tx: tasks.delete_task.steps(tx, task_id), ("task", task_id))
    return _json({"id": task_id})


@router.post(
    "/tasks/{task_id}/attachments",
    status_code=201,
    response_model=AttachmentShown,
    summary="Attach a file",
    openapi_extra={"requestBody": UPLOAD},
)
async def upload_attachment(task_id: TaskId, request: Request) -> Response:
    """Send multipart/form-data with the file in the field `content`. Other fields may come before or after it."""
    async with receive_attachment(request, hub_of(request), principal_of(request.scope)) as received:
        new, rules = _described(received.upload), _rules(received.upload, request, received.hub.upload_rules)
        added = await received.attach(task_id, new, rules, request_key_of(request))
    return _json(added.attachment.json(), 201)


@router.post(
    "/tasks/{task_id}/attachments/link",
    status_code=201,
    response_model=AttachmentShown,
    summary="Attach a URL or a path in a repository",
)
async def link_attachment(task_id: TaskId, sent: LinkSent, request: Request) -> Response:
    hub = hub_of(request)
    new = NewTaskAttachment(
        kind=sent.kind,
        title=sent.title,
        media_type=sent.media_type,
        expires_at=sent.expires_at,
        labels=tuple(sent.labels or ()),
        meta=sent.meta or {},
    )
    key = request_key_of(request)
    added = await hub.database.writer.append(
        lambda tx: tasks.create_link_attachment.steps(
            tx,
            task_id,
            new,
            external_url=sent.external_url,
            repo_path=sent.repo_path,
            allowed_media_types=hub.upload_rules.allowed_media_types,
            request=key,
        ),
        ("task", task_id),
    )
    return _json(added.attachment.json(), 201)


@router.get(
    "/tasks/{task_id}/attachments",
    response_model=AttachmentList,
    summary="List the attachments of a task, newest first",
)
def list_attachments(
    task_id: TaskId,
    request: Request,
    limit: Limit = LIMIT_DEFAULT,
    after: After = "",
) -> Response:
    with hub_of(request).database.read() as tx:
        page = tasks.list_attachments(tx, task_id, limit, after)
    now = now_text()
    return _json({"attachments": [attachment.json(now) for attachment in page.items], **paged(page)})


@router.get("/attachments/{attachment_id}", response_model=AttachmentShown, summary="Get an attachment")
def get_attachment(attachment_id: AttachmentId, request: Request) -> Response:
    with hub_of(request).database.read() as tx:
        return _json(tasks.get_attachment(tx, attachment_id).json())


@router.put(
    "/attachments/{attachment_id}/labels", response_model=AttachmentShown, summary="Replace the labels of an attachment"
)
async def replace_labels(attachment_id: AttachmentId, sent: LabelsSent, request: Request) -> Response:
    attachment = await hub_of(request).database.writer.run(
        lambda tx: tasks.replace_labels(tx, attachment_id, sent.labels), ("task attachment", attachment_id)
    )
    return _json(attachment.json())


@router.delete("/attachments/{attachment_id}", response_model=Removed, summary="Delete an attachment")
async def delete_attachment(attachment_id: AttachmentId, request: Request) -> Response:
    writer = hub_of(request).database.writer
    await writer.append(lambda tx: tasks.delete_attachment.steps(tx, attachment_id), ("task attachment", attachment_id))
    return _json({"id": attachment_id})


_CONTENT: dict[int | str, dict[str, Any]] = {
    200: {"content": {"application/octet-stream": {}}, "description": "The whole content."},
    206: {"content": {"application/octet-stream": {}}, "description": "The requested range."},
    304: {"description": "The content has not changed."},
}


# Two routes instead of one with two methods, whose operations would share one id in the OpenAPI document.
@router.head("/attachments/{attachment_id}/content", response_model=None, include_in_schema=False)
@router.get(
    "/attachments/{attachment_id}/content",
    status_code=200,
    response_model=None,
    responses=_CONTENT,
    summary="Download an attachment",
)
def get_content(
    attachment_id: AttachmentId,
    request: Request,
    range_: Annotated[str | None, Header(alias="Range")] = None,
    if_range: Annotated[str | None, Header()] = None,
    if_none_match: Annotated[str | None, Header()] = None,
) -> Response:
    hub = hub_of(request)
    with hub.database.read() as tx:
        content = tasks.open_content(tx, attachment_id)
    return content_response(content, hub.blobs, request.method, range_, if_range, if_none_match)


def _described(upload: Upload) -> NewTaskAttachment:
    """Return the attachment that the form fields of an upload describe."""
    for name, _ in upload.fields:
        if name not in _FIELDS:
            raise refused(name[:64], "is not a field of an upload")
    kind = upload.one("kind")
    if kind is None:
        raise refused("kind", "is missing")
    return NewTaskAttachment(
        kind=kind,
        title=upload.one("title"),
        filename=upload.filename,
        media_type=upload.one("media_type"),
        expires_at=upload.one("expires_at"),
        labels=tuple(upload.all("labels", "labels[]")),
        meta=_meta(upload.one("meta")),
    )


def _meta(text: str | None) -> dict[str, Json]:
    if text is None or not text.strip():
        return {}
    try:
        meta = parse(text.encode())
    except InvalidInput as error:
        raise refused("meta", str(error).removeprefix("the body ")) from None
    if not isinstance(meta, dict):
        raise refused("meta", "must be an object")
    return meta


def _rules(upload: Upload, request: Request, rules: UploadRules) -> UploadRules:
    """Apply the upload's choice of `reject_media_type_mismatch`; only an admin may switch the check off."""
    choice = upload.one("reject_media_type_mismatch")
    if choice is None:
        return rules
    if choice not in {"true", "false"}:
        raise refused("reject_media_type_mismatch", "must be true or false")
    if choice == "false" and not may(request.scope, "admin"):
        raise HTTPException(403, "Only a token with the scope admin can switch off the media type check.")
    return UploadRules(rules.allowed_media_types, choice == "true", rules.archive)


def _task(task: tasks.Task) -> dict[str, Any]:
    return {name: value for name, value in asdict(task).items() if value is not None}


def _json(content: Any, status: int = 200) -> Response:
    return JSONResponse(content, status)
