"""Ingest: messages are normalized, and entries inserted once, by the policies of the active schema."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import Annotated, Any, Literal, cast

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, Field
from starlette.concurrency import run_in_threadpool

from onceward.core.canonical import Json
from onceward.core.request import media_type_of
from onceward.core.text import refused, written
from onceward.errors import InvalidInput, TooLarge
from onceward.hub.body import Sent, StrictRoute, check_media_type, parse, sent_bytes
from onceward.hub.constraints import each_trimmed, trimmed
from onceward.hub.ingest_bodies import EMAIL, ENTRIES, MAIL, TELEGRAM
from onceward.hub.paging import LIMIT_DEFAULT, After, Limit, PageShown, paged
from onceward.hub.schema import schema_of
from onceward.hub.state import hub_of, request_key_of
from onceward.ingest.columns import TEXT_BYTES_MAX, UPDATABLE
from onceward.ingest.email.normalize import normalize_email, normalize_mail
from onceward.ingest.insert import insert_entries, insert_entry
from onceward.ingest.keys import EMAIL_THREAD
from onceward.ingest.payload import Payload
from onceward.ingest.policy import POLICY_KEY_BYTES_MAX, policy_page, put_policy
from onceward.ingest.schema import active_schema, schema_named, set_test_mode, test_mode
from onceward.ingest.telegram import normalize_telegram

router = APIRouter(route_class=StrictRoute, tags=["ingest"])

Text = str | None
SchemaName = Literal["pkm", "pkm_test"]
# A text that may be absent and is never null; the factory keeps a default out of the OpenAPI document.
MaybeText = Annotated[str, Field(default_factory=str)]


class NormalizedShown(BaseModel):
    """What `POST /db/insert` takes as it is. A field that the message says nothing about is absent."""

    source: str
    content_type: str
    title: MaybeText
    author: MaybeText
    url: Annotated[MaybeText, Field(description="As it was sent.")]
    url_canonical: MaybeText
    capture_text: MaybeText
    clean_text: MaybeText
    content_hash: MaybeText
    external_ref: MaybeText
    metadata: dict[str, Any]
    idempotency_policy_key: str
    idempotency_key_primary: Text
    idempotency_key_secondary: Text
    reasons: list[str] = Field(description="Why it is of this type and has these keys.")


class Outcome(BaseModel):
    """The entry as it is stored now, and what became of what was sent."""

    id: str
    entry_id: int
    created_at: str
    updated_at: str
    source: str
    content_type: Text
    title: Text
    author: Text
    url: Text
    url_canonical: Text
    capture_text: Text
    clean_text: Text
    content_hash: Text
    external_ref: Text
    metadata: dict[str, Any]
    idempotency_policy_id: int | None
    idempotency_key_primary: Text
    idempotency_key_secondary: Text
    action: Literal["inserted", "updated", "skipped"]
    changed: bool
    matched_on: Literal["primary", "secondary"] | None
    split_with: list[str] | None = Field(None, description="The entries that the other key belongs to.")
    stale: bool | None = Field(None, description="What was sent is older than what is stored, and changed nothing.")
    event_id: int | None = Field(description="Null when nothing was written.")


class EntryShown(Outcome):
    schema_: SchemaName = Field(alias="schema")


class ResultShown(Outcome):
    index: int
    duplicate_of_index: int | None = Field(None, description="An earlier item of the same batch.")


class FieldShown(BaseModel):
    field: str
    message: str


class ErrorShown(BaseModel):
    code: str
    detail: str
    errors: list[FieldShown] | None = None


class FailedShown(BaseModel):
    index: int
    action: Literal["failed"]
    error: ErrorShown


class BatchShown(BaseModel):
    """One result for each item, in their order."""

    results: list[ResultShown | FailedShown]
    schema_: SchemaName = Field(alias="schema")


Updatable = Annotated[str, Field(json_schema_extra={"enum": [*UPDATABLE]})]


class PolicySent(Sent):
    """A field that has a default need not be sent. It then stays as it is, and has the default in a new policy."""

    policy_key: str = Field(json_schema_extra=trimmed(POLICY_KEY_BYTES_MAX))
    source: str = Field(json_schema_extra=trimmed(TEXT_BYTES_MAX["source"]))
    content_type: str = Field(
        description="One, or several with a slash between them.",
        json_schema_extra=each_trimmed("/", TEXT_BYTES_MAX["content_type"]),
    )
    conflict_action: Literal["skip", "update"]
    update_fields: list[Updatable] | None = Field(
        None, description="What an update changes; null: all that may be changed."
    )
    enabled: bool = True
    secondary_role: Literal["identity", "hint"] = "identity"


class PolicyShown(BaseModel):
    policy_id: int
    policy_key: str
    source: str
    content_type: str
    conflict_action: Literal["skip", "update"]
    update_fields: list[str] | None
    enabled: bool
    secondary_role: Literal["identity", "hint"]


class PolicyList(PageShown):
    schema_: SchemaName = Field(alias="schema")
    policies: list[PolicyShown]


class TestMode(Sent):
    enabled: bool


@router.post(
    "/normalize/telegram",
    response_model=NormalizedShown,
    summary="Make a payload of a Telegram message",
    openapi_extra={"requestBody": TELEGRAM},
)
async def telegram(request: Request) -> Response:
    return await _normalized(request, lambda sent: normalize_telegram(_object(sent)))


@router.post(
    "/normalize/email",
    response_model=NormalizedShown,
    summary="Make a payload of a mail",
    openapi_extra={"requestBody": EMAIL},
)
async def email(
    request: Request,
    content_type: Annotated[str | None, Query(description="What a raw mail is, whatever it says itself.")] = None,
    received_at: Annotated[str | None, Query(description="When a raw mail came that does not say it.")] = None,
    thread_policy: Annotated[str | None, Query(description="How a raw mail is keyed if it is correspondence.")] = None,
) -> Response:
    """Send its parts as JSON, or the whole mail as it is, as `message/rfc822`."""
    if media_type_of(request.headers.get("content-type", "")) == MAIL:
        policy = EMAIL_THREAD if thread_policy is None else thread_policy
        normalize = functools.partial(
            normalize_mail, content_type=content_type, received_at=received_at, thread_policy=policy
        )
        return await _normalized(request, normalize)
    told = {"content_type": content_type, "received_at": received_at, "thread_policy": thread_policy}
    for name, said in told.items():
        if said is not None:
            raise refused(name, "belongs into the JSON; in the address it is for a raw mail")
    return await _normalized(request, lambda sent: normalize_email(_object(sent)))


@router.post(
    "/db/insert",
    response_model=EntryShown | BatchShown,
    summary="Insert an entry, or several, once",
    openapi_extra={"requestBody": ENTRIES},
)
async def insert(request: Request) -> Response:
    """Takes what a normalizer gives, alone or as `{"items": […]}`, and does what its policy says if it is there."""
    sent = await sent_bytes(request)
    if sent:
        check_media_type(request)
    async with request.app.state.writers:
        return await run_in_threadpool(_insert, request, sent)


@router.get("/policies", response_model=PolicyList, summary="List the policies of a schema")
def get_policies(
    request: Request,
    schema: Annotated[SchemaName | None, Query(description="Without it the active one.")] = None,
    limit: Limit = LIMIT_DEFAULT,
    after: After = "",
) -> Response:
    with hub_of(request).database.read() as tx:
        asked = active_schema(tx) if schema is None else schema_named(schema)
        page = policy_page(tx, asked, limit, after)
    return _json({"schema": asked.name, "policies": [policy.json() for policy in page.items], **paged(page)})


@router.put("/policies", response_model=PolicyShown, summary="Make or change a policy of the active schema")
def change_policy(sent: PolicySent, request: Request) -> Response:
    active = schema_of(request)
    with hub_of(request).database.write() as tx:
        return _json(put_policy(tx, active, **sent.model_dump(exclude_unset=True)).json())


@router.get("/test-mode", response_model=TestMode, summary="Whether entries go to the schema for tests")
def get_test_mode(request: Request) -> Response:
    with hub_of(request).database.read() as tx:
        return _json({"enabled": test_mode(tx)})


@router.put("/test-mode", response_model=TestMode, summary="Switch between the schemas")
def change_test_mode(sent: TestMode, request: Request) -> Response:
    with hub_of(request).database.write() as tx:
        set_test_mode(tx, sent.enabled)
    return _json({"enabled": sent.enabled})


async def _normalized(request: Request, normalize: Callable[[bytes], Payload]) -> Response:
    sent = await sent_bytes(request)
    if sent:
        check_media_type(request, MAIL if request.url.path == "/normalize/email" else "")
    # It needs no database, so it does not wait with those who do.
    turns: asyncio.Semaphore = request.app.state.normalizers
    async with turns:
        return await run_in_threadpool(lambda: _json(normalize(sent)))


def _insert(request: Request, sent: bytes) -> Response:
    said = _object(sent)
    hub, active, key = hub_of(request), schema_of(request), request_key_of(request)
    if "items" not in said:
        done = [insert_entry(hub.database, active, said, request=key)]
    else:
        items, strict = _batch(said, hub.config.ingest.max_batch)
        done = insert_entries(hub.database, active, items, strict=strict, request=key)
    if any(one.event_id is not None for one in done):
        hub.feed.hint()
    shown = [one.json() for one in done]
    return _json({**({"results": shown} if "items" in said else shown[0]), "schema": active.name})


def _batch(said: dict[str, Json], count_max: int) -> tuple[list[Payload], bool]:
    items, strict = said["items"], said.get("strict", False)
    for name in said:
        if name not in {"items", "strict"}:
            raise refused(name[:64], "stands within an item, not beside them")
    if not isinstance(items, list):
        raise refused("items", "must be a list of payloads")
    if not isinstance(strict, bool):
        raise refused("strict", "must be true or false")
    if len(items) > count_max:
        raise TooLarge(f"items is limited to {count_max}; send the rest in another request")
    # One that is no object is refused as what it is: a bad item.
    return cast("list[Payload]", items), strict


def _object(sent: bytes) -> dict[str, Json]:
    said = parse(sent)
    if not isinstance(said, dict):
        raise InvalidInput("The body must be a JSON object", (("body", "must be an object"),))
    return said


def _json(content: object) -> Response:
    return Response(written(content), media_type="application/json")
