"""Ingest routes: normalize messages, and insert entries once under the policies of the active schema."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Literal, TypeVar, cast

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, Field
from starlette.concurrency import run_in_threadpool

from onceward.core.canonical import Json
from onceward.core.json_text import refused, written
from onceward.errors import InvalidInput, TooLarge
from onceward.http.request.headers import media_type_of
from onceward.hub.audit.actor import actor_of
from onceward.hub.audit.log import append
from onceward.hub.db.engine import Transaction
from onceward.hub.ingest.email.normalize import normalize_email, normalize_mail
from onceward.hub.ingest.entries.columns import TEXT_BYTES_MAX, UPDATABLE
from onceward.hub.ingest.entries.insert import INSERT, EntriesSent, Inserted, insert_steps, writer_gave_up
from onceward.hub.ingest.entries.policy import POLICY_KEY_BYTES_MAX, Policy, list_policies, policy_page, put_policy
from onceward.hub.ingest.entries.preview import find_entries, result_without_write
from onceward.hub.ingest.entries.result import alone
from onceward.hub.ingest.entries.schema import active_schema, schema_named, set_test_mode, test_mode
from onceward.hub.ingest.normalize.keys import EMAIL_THREAD
from onceward.hub.ingest.payload import Payload
from onceward.hub.ingest.telegram import normalize_telegram
from onceward.hub.state import hub_of, request_key_of
from onceward.hub.web.active_schema import schema_of, stored_schema
from onceward.hub.web.constraints import each_trimmed, trimmed
from onceward.hub.web.ingest_bodies import EMAIL, ENTRIES, MAIL, TELEGRAM
from onceward.hub.web.json_body import StrictBody, StrictRoute, check_media_type, parse, sent_bytes
from onceward.hub.web.metrics import http_counts
from onceward.hub.web.pagination import LIMIT_DEFAULT, After, Limit, PageShown, paged

T = TypeVar("T")

# Larger bodies are parsed, validated and written in a thread.
INLINE_BYTES_MAX = 16 * 1024
# The place of a batch's row locks among those of other works.
_ORDER = ("entries",)

router = APIRouter(route_class=StrictRoute, tags=["ingest"])

Text = str | None
SchemaName = Literal["pkm", "pkm_test"]
# Text that may be absent but never null. The factory keeps a default out of the OpenAPI document.
MaybeText = Annotated[str, Field(default_factory=str)]


class NormalizedShown(BaseModel):
    """Normalized payload, ready for `POST /db/insert`. Fields without a value in the message are absent."""

    source: str
    content_type: str
    title: MaybeText
    author: MaybeText
    url: Annotated[MaybeText, Field(description="The URL as it was sent.")]
    url_canonical: MaybeText
    capture_text: MaybeText
    clean_text: MaybeText
    content_hash: MaybeText
    external_ref: MaybeText
    metadata: dict[str, Any]
    idempotency_policy_key: str
    idempotency_key_primary: Text
    idempotency_key_secondary: Text
    reasons: list[str] = Field(description="Why the entry has this content type and these keys.")


class Outcome(BaseModel):
    """The stored entry, and what the insert did."""

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
    split_with: list[str] | None = Field(
        None, description="Ids of other entries that have the secondary key of the payload."
    )
    stale: bool | None = Field(
        None, description="True if the payload is older than the stored entry, which was not changed."
    )
    event_id: int | None = Field(description="Null if nothing was written.")


class EntryShown(Outcome):
    schema_: SchemaName = Field(alias="schema")


class ResultShown(Outcome):
    index: int
    duplicate_of_index: int | None = Field(
        None, description="The index of an earlier item of the batch that is the same entry."
    )


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
    """One result for each item, in the order of the items."""

    results: list[ResultShown | FailedShown]
    schema_: SchemaName = Field(alias="schema")


Updatable = Annotated[str, Field(json_schema_extra={"enum": [*UPDATABLE]})]


class PolicySent(StrictBody):
    """A policy to create or change. An omitted field keeps its value, or gets its default in a new policy."""

    policy_key: str = Field(json_schema_extra=trimmed(POLICY_KEY_BYTES_MAX))
    source: str = Field(json_schema_extra=trimmed(TEXT_BYTES_MAX["source"]))
    content_type: str = Field(
        description="One content type, or several separated by slashes.",
        json_schema_extra=each_trimmed("/", TEXT_BYTES_MAX["content_type"]),
    )
    conflict_action: Literal["skip", "update"]
    update_fields: list[Updatable] | None = Field(
        None, description="The fields that an update changes. Null: all fields that can be changed."
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


class TestMode(StrictBody):
    enabled: bool


@router.post(
    "/normalize/telegram",
    response_model=NormalizedShown,
    summary="Normalize a Telegram message",
    openapi_extra={"requestBody": TELEGRAM},
)
async def telegram(request: Request) -> Response:
    return await _normalized(request, lambda sent: normalize_telegram(_object(sent)))


@router.post(
    "/normalize/email",
    response_model=NormalizedShown,
    summary="Normalize an email",
    openapi_extra={"requestBody": EMAIL},
)
async def email(
    request: Request,
    content_type: Annotated[
        str | None, Query(description="Raw email only: overrides the detected content type.")
    ] = None,
    received_at: Annotated[
        str | None, Query(description="Raw email only: when it was received, if it has no date.")
    ] = None,
    thread_policy: Annotated[str | None, Query(description="Raw email only: the policy for correspondence.")] = None,
) -> Response:
    """Send the parts of an email as JSON, or a raw email as `message/rfc822`."""
    if media_type_of(request.headers.get("content-type", "")) == MAIL:
        policy = EMAIL_THREAD if thread_policy is None else thread_policy
        normalize = functools.partial(
            normalize_mail, content_type=content_type, received_at=received_at, thread_policy=policy
        )
        return await _normalized(request, normalize)
    params = {"content_type": content_type, "received_at": received_at, "thread_policy": thread_policy}
    for name, value in params.items():
        if value is not None:
            raise refused(name, "is a query parameter for raw email only; put it into the JSON body")
    return await _normalized(request, lambda sent: normalize_email(_object(sent)))


@router.post(
    "/db/insert",
    response_model=EntryShown | BatchShown,
    summary="Insert one entry or a batch, once",
    openapi_extra={"requestBody": ENTRIES},
)
async def insert(request: Request) -> Response:
    """Send a normalized payload, or several as `{"items": […]}`. The policy decides what happens to existing entries."""
    sent = await sent_bytes(request)
    if sent:
        check_media_type(request)
    is_large = len(sent) > INLINE_BYTES_MAX
    body = await _computed(request, is_large, _object, sent)
    if "items" in body:
        return await _insert_batch(request, body)
    return await _insert_one(request, body, is_large)


@router.get("/policies", response_model=PolicyList, summary="List the policies of a schema")
def get_policies(
    request: Request,
    schema: Annotated[SchemaName | None, Query(description="Default: the active schema.")] = None,
    limit: Limit = LIMIT_DEFAULT,
    after: After = "",
) -> Response:
    with hub_of(request).database.read() as tx:
        found = active_schema(tx) if schema is None else schema_named(schema)
        page = policy_page(tx, found, limit, after)
    return _json({"schema": found.name, "policies": [policy.json() for policy in page.items], **paged(page)})


@router.put("/policies", response_model=PolicyShown, summary="Create or change a policy of the active schema")
async def change_policy(sent: PolicySent, request: Request) -> Response:
    active, given = await schema_of(request), sent.model_dump(exclude_unset=True)
    # Here, not in the writer's thread, which does not know the id of the request.
    actor = actor_of(request.scope)

    def change(tx: Transaction) -> Policy:
        policy = put_policy(tx, active, **given)
        append(tx, actor, "policy.put", policy.policy_key, {"schema": active.name, **given})
        return policy

    changed = await hub_of(request).database.writer.run(change, ("policies",))
    return _json(changed.json())


@router.get("/test-mode", response_model=TestMode, summary="Get the test mode")
def get_test_mode(request: Request) -> Response:
    with hub_of(request).database.read() as tx:
        return _json({"enabled": test_mode(tx)})


@router.put("/test-mode", response_model=TestMode, summary="Switch the test mode on or off")
async def change_test_mode(sent: TestMode, request: Request) -> Response:
    actor = actor_of(request.scope)

    def change(tx: Transaction) -> None:
        set_test_mode(tx, sent.enabled)
        append(tx, actor, "test_mode.put", None, {"enabled": sent.enabled})

    await hub_of(request).database.writer.run(change, ("ingest_mode",))
    return _json({"enabled": sent.enabled})


async def _normalized(request: Request, normalize: Callable[[bytes], Payload]) -> Response:
    sent = await sent_bytes(request)
    if sent:
        check_media_type(request, MAIL if request.url.path == "/normalize/email" else "")
    # Normalizing needs no database, so it has its own semaphore and does not wait for writers.
    normalizers: asyncio.Semaphore = request.app.state.normalizers
    async with normalizers:
        return await run_in_threadpool(lambda: _json(normalize(sent)))


async def _insert_one(request: Request, body: Payload, is_large: bool) -> Response:
    database, key = hub_of(request).database, request_key_of(request)
    found = await find_entries(database, body, stored_schema(request))
    sent = await _computed(
        request, is_large, lambda: EntriesSent.of(found.schema, [body], found.policies.values(), request=key)
    )
    done = None
    # A request that may have run before must get the result of its first run, not that of a duplicate.
    if key is None or not key.again:
        done = result_without_write(found, sent.drafts[0])
    if done is None:
        (done,) = await _written(request, sent, database.writer.add(INSERT, sent))
    http_counts().count_entries((done.action,))
    shown = await _computed(request, is_large, alone(done).text)
    return _text(f'{shown[:-1]},"schema":"{sent.schema.name}"}}')


async def _insert_batch(request: Request, body: dict[str, Json]) -> Response:
    hub, key = hub_of(request), request_key_of(request)
    items, strict = _batch(body, hub.config.ingest.max_batch)
    schema = await schema_of(request)

    def validated() -> EntriesSent:
        with hub.database.read() as tx:
            policies = list_policies(tx, schema)
        return EntriesSent.of(schema, items, policies, strict=strict, request=key)

    sent = await _computed(request, True, validated)
    done = await _written(request, sent, hub.database.writer.append(lambda tx: insert_steps(tx, sent), _ORDER))
    http_counts().count_entries(one.action for one in done)
    shown = await _computed(request, True, lambda: ",".join([one.text() for one in done]))
    return _text(f'{{"results":[{shown}],"schema":"{schema.name}"}}')


async def _written(request: Request, sent: EntriesSent, by_writer: Awaitable[list[Inserted]]) -> list[Inserted]:
    """Return the results of the writer; insert directly if it has given up after conflicts with other transactions."""
    try:
        return await by_writer
    except Exception as error:
        if not writer_gave_up(error):
            raise
    hub = hub_of(request)
    async with request.app.state.writers:
        done = await run_in_threadpool(sent.insert_directly, hub.database)
    hub.feed.notify()
    return done


async def _computed(request: Request, is_large: bool, compute: Callable[..., T], *values: object) -> T:
    """Compute something on the event loop if it is small; otherwise in a thread, so that the loop is not blocked."""
    if not is_large:
        return compute(*values)
    async with request.app.state.writers:
        return await run_in_threadpool(compute, *values)


def _batch(body: dict[str, Json], count_max: int) -> tuple[list[Payload], bool]:
    items, strict = body["items"], body.get("strict", False)
    for name in body:
        if name not in {"items", "strict"}:
            raise refused(name[:64], "is not a field of a batch; put it into each item")
    if not isinstance(items, list):
        raise refused("items", "must be a list of payloads")
    if not isinstance(strict, bool):
        raise refused("strict", "must be true or false")
    if len(items) > count_max:
        raise TooLarge(f"at most {count_max} items per batch, got {len(items)}; send the rest in another request")
    # An item that is not an object fails alone, like every bad item.
    return cast("list[Payload]", items), strict


def _object(sent: bytes) -> dict[str, Json]:
    body = parse(sent)
    if not isinstance(body, dict):
        raise InvalidInput("the body must be a JSON object", (("body", "must be an object"),))
    return body


def _json(content: object) -> Response:
    return _text(written(content))


def _text(text: str) -> Response:
    return Response(text, media_type="application/json")
