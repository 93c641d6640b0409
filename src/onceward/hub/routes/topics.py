"""Topic routes: topics, messages and topic attachments."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from onceward.core.json_text import written
from onceward.hub import topics
from onceward.hub.state import hub_of, request_key_of
from onceward.hub.topics.attachment import ATTACH, FIND, Attached, AttachmentSent, attachment_json, found_duplicate
from onceward.hub.topics.identity import KEY_BYTES_MAX, KIND_BYTES_MAX
from onceward.hub.topics.message import CONTENT_BYTES_MAX, SENDER_BYTES_MAX
from onceward.hub.topics.topic import TITLE_BYTES_MAX
from onceward.hub.web.constraints import NO_CONTROL, WEB_URL, given, text
from onceward.hub.web.json_body import StrictBody, StrictRoute
from onceward.hub.web.pagination import LIMIT_DEFAULT, After, Limit, PageShown, paged
from onceward.hub.web_url import LENGTH_MAX as URL_LENGTH_MAX

router = APIRouter(prefix="/api/v1", route_class=StrictRoute, tags=["topics"])

TopicId = Annotated[str, Path(description="The id of a topic.", max_length=255)]


# The value that attachments of the kinds `url` and `link` must have.
_LINK: dict[str, Any] = {
    "if": {"required": ["kind"], "properties": {"kind": {"pattern": "^(?:[uU][rR][lL]|[lL][iI][nN][kK])$"}}},
    "then": {
        "properties": {
            "value_json": {
                "required": ["url"],
                "properties": {
                    "url": {"type": "string", "maxLength": URL_LENGTH_MAX, "pattern": WEB_URL},
                    "title": {"type": ["string", "null"], "pattern": NO_CONTROL},
                    "description": {"type": ["string", "null"], "pattern": NO_CONTROL},
                },
            }
        }
    },
}


class TopicSent(StrictBody):
    title: str = Field(json_schema_extra=text(TITLE_BYTES_MAX))


class MessageSent(StrictBody):
    sender: str = Field(json_schema_extra=text(SENDER_BYTES_MAX))
    content: str = Field(json_schema_extra=text(CONTENT_BYTES_MAX))


class AttachmentBody(StrictBody):
    model_config = ConfigDict(json_schema_extra=_LINK)

    kind: str = Field(description="The kind of attachment, such as `citation`.", json_schema_extra=text(KIND_BYTES_MAX))
    key: str | None = Field(
        None,
        description="A name within the kind. A missing key and an empty key are the same.",
        json_schema_extra={"maxLength": KEY_BYTES_MAX, "pattern": r"^(?![\s\S])|\S"},
    )
    value_json: dict[str, Any] = Field(description="The value: an object of at most 16 KiB.")
    dedupe_key: str | None = Field(
        None,
        description="Identifies the attachment. Default: derived from the canonical JSON of the value.",
        json_schema_extra=text(KEY_BYTES_MAX),
    )
    source_message_id: str | None = Field(
        None, description="The message of this topic that it comes from.", json_schema_extra=text(KEY_BYTES_MAX)
    )


class AttachmentChanged(AttachmentBody):
    model_config = ConfigDict(json_schema_extra={**_LINK, "allOf": [given("dedupe_key")]})


class TopicShown(BaseModel):
    id: str
    title: str
    created_at: str


class MessageShown(BaseModel):
    id: str
    topic_id: str
    sender: str
    content: str
    created_at: str


class AttachmentShown(BaseModel):
    id: str
    topic_id: str
    kind: str
    key: str | None
    value_json: dict[str, Any]
    dedupe_key: str
    source_message_id: str | None
    created_at: str


class TopicMade(BaseModel):
    topic: TopicShown
    event_id: int | None


class TopicFound(BaseModel):
    topic: TopicShown


class TopicList(PageShown):
    topics: list[TopicShown]


class MessageMade(BaseModel):
    message: MessageShown
    event_id: int | None


class MessageList(PageShown):
    messages: list[MessageShown]


class AttachmentMade(BaseModel):
    attachment: AttachmentShown
    event_id: int | None = Field(description="Null if nothing changed.")
    value_differs: bool | None = Field(None, description="True if the stored value differs from the value sent.")


class AttachmentList(PageShown):
    attachments: list[AttachmentShown]


@router.post("/topics", status_code=201, response_model=TopicMade, summary="Create a topic")
async def make_topic(sent: TopicSent, request: Request) -> Response:
    key = request_key_of(request)
    writer = hub_of(request).database.writer
    topic, event_id = await writer.append(lambda tx: topics.create_topic.steps(tx, sent.title, key))
    return _json(201, {"topic": asdict(topic), "event_id": event_id})


@router.get("/topics", response_model=TopicList, summary="List topics, newest first")
def list_topics(request: Request, limit: Limit = LIMIT_DEFAULT, after: After = "") -> Response:
    with hub_of(request).database.read() as tx:
        page = topics.list_topics(tx, limit, after)
    return _json(200, {"topics": [asdict(topic) for topic in page.items], **paged(page)})


@router.get("/topics/{topic_id}", response_model=TopicFound, summary="Get a topic")
def get_topic(topic_id: TopicId, request: Request) -> Response:
    with hub_of(request).database.read() as tx:
        topic = topics.get_topic(tx, topic_id)
    return _json(200, {"topic": asdict(topic)})


@router.post("/topics/{topic_id}/messages", status_code=201, response_model=MessageMade, summary="Post a message")
async def post_message(topic_id: TopicId, sent: MessageSent, request: Request) -> Response:
    key = request_key_of(request)
    writer = hub_of(request).database.writer
    message, event_id = await writer.append(
        lambda tx: topics.post_message.steps(tx, topic_id, sent.sender, sent.content, key)
    )
    return _json(201, {"message": asdict(message), "event_id": event_id})


@router.get("/topics/{topic_id}/messages", response_model=MessageList, summary="List messages, newest first")
def list_messages(topic_id: TopicId, request: Request, limit: Limit = LIMIT_DEFAULT, after: After = "") -> Response:
    with hub_of(request).database.read() as tx:
        page = topics.list_messages(tx, topic_id, limit, after)
    return _json(200, {"messages": [asdict(message) for message in page.items], **paged(page)})


@router.post(
    "/topics/{topic_id}/attachments",
    status_code=201,
    response_model=AttachmentMade,
    responses={200: {"model": AttachmentMade, "description": "The attachment already existed; nothing changed."}},
    summary="Add an attachment, once",
)
async def add_attachment(topic_id: TopicId, sent: AttachmentBody, request: Request) -> Response:
    database, key = hub_of(request).database, request_key_of(request)
    new = AttachmentSent.of(topic_id, _new(sent), key)
    attached = None
    # A request that may have run before must get the result of its first run, not that of a duplicate.
    if key is None or not key.again:
        attached = found_duplicate(await database.lookups.find(FIND, new.identity.columns()), new)
    if attached is None:
        attached = await database.writer.add(ATTACH, new)
    return _attached(200 if attached.event_id is None else 201, attached)


@router.put(
    "/topics/{topic_id}/attachments",
    response_model=AttachmentMade,
    summary="Change the value of an attachment",
)
async def update_attachment(topic_id: TopicId, sent: AttachmentChanged, request: Request) -> Response:
    new, key = _new(sent), request_key_of(request)
    attached = await hub_of(request).database.writer.append(
        lambda tx: topics.update_attachment.steps(tx, topic_id, new, key),
        ("attachment", topic_id, new.kind, new.key or "", new.dedupe_key or ""),
    )
    return _attached(200, attached)


@router.get("/topics/{topic_id}/attachments", response_model=AttachmentList, summary="List attachments, newest first")
def list_attachments(
    topic_id: TopicId,
    request: Request,
    limit: Limit = LIMIT_DEFAULT,
    after: After = "",
    kind: Annotated[str | None, Query(description="Only attachments of this kind.")] = None,
    key: Annotated[str | None, Query(description="Only attachments with this key; empty: without a key.")] = None,
    dedupe_key: Annotated[str | None, Query(description="Only attachments with this dedupe key.")] = None,
) -> Response:
    with hub_of(request).database.read() as tx:
        page = topics.list_attachments(tx, topic_id, limit, after, kind=kind, key=key, dedupe_key=dedupe_key)
    listed = ",".join(map(attachment_json, page.items))
    return _text(200, f'{{"attachments":[{listed}],{written(paged(page))[1:]}')


def _new(sent: AttachmentBody) -> topics.NewAttachment:
    return topics.NewAttachment(sent.kind, sent.value_json, sent.key, sent.dedupe_key, sent.source_message_id)


def _attached(status: int, attached: Attached) -> Response:
    differs = ',"value_differs":true' if attached.value_differs else ""
    event_id = written(attached.event_id)
    return _text(status, f'{{"attachment":{attachment_json(attached.attachment)},"event_id":{event_id}{differs}}}')


def _json(status: int, content: dict[str, object]) -> Response:
    return _text(status, written(content))


def _text(status: int, text: str) -> Response:
    return Response(text, status, media_type="application/json")
