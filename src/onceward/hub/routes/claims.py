"""What the ledger holds, and how a doubt is ended. For an admin: keys and outcomes are everybody's."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import JSONResponse

from onceward.core.claim import Status
from onceward.core.key import KEY_BYTES_MAX, SCOPE_BYTES_MAX
from onceward.core.outcome import INLINE_BYTES_MAX
from onceward.core.response import RETRIABLE_STATUSES
from onceward.hub import claims
from onceward.hub.auth import principal_of
from onceward.hub.body import Sent, StrictRoute
from onceward.hub.claims import REASON_BYTES_MAX
from onceward.hub.constraints import BASE64, Schema, not_together, text
from onceward.hub.given_response import DENIED_HEADER, HEADER_NAME, Given
from onceward.hub.paging import LIMIT_DEFAULT, After, Limit, PageShown
from onceward.hub.state import hub_of

router = APIRouter(prefix="/api/v1/claims", route_class=StrictRoute, tags=["claims"])


class ClaimShown(BaseModel):
    scope: str
    key: str
    status: Status
    version: int = Field(description="What a resolution names: the claim that was looked at.")
    attempt: int
    created_at: str | None = Field(description="When the key was first claimed.")
    claimed_at: str | None = Field(description="When this version was claimed.")
    lease_until: str | None = Field(description="While it is in progress: when a silent holder loses it.")
    completed_at: str | None
    expires_at: str | None
    repeatable: bool
    user_id: str | None
    endpoint: str | None
    note: str | None = Field(description="What was said of a failure, a doubt, or its end.")


class OutcomeShown(BaseModel):
    code: int | None = Field(description="The status of a kept response; none for other values.")
    bytes: int | None = Field(description="None when the result could not be kept.")
    value: Any = Field(None, description="What is kept, up to 64 KiB.")


class ClaimWhole(ClaimShown):
    outcome: OutcomeShown | None


class ClaimList(PageShown):
    claims: list[ClaimShown]
    next: str | None = Field(deprecated=True, description="As `next_after`.")


_NOT_RETRIED: Schema = {"not": {"enum": sorted(RETRIABLE_STATUSES)}}
# Every JSON parser reads integers up to this exactly.
_VERSION_MAX = 2**53 - 1


class ResponseSent(Sent):
    """A response as the client gets it. `Content-Length` is added."""

    model_config = ConfigDict(json_schema_extra=not_together("body", "body_base64"))

    status: int = Field(
        ge=200,
        le=499,
        description="Not a status on which clients retry.",
        json_schema_extra=_NOT_RETRIED,
    )
    headers: dict[str, str | list[str]] = Field(
        {},
        description="A name has one value, or several. Headers of one connection or exchange are refused.",
        json_schema_extra={"propertyNames": {"pattern": HEADER_NAME, "not": {"pattern": DENIED_HEADER}}},
    )
    body: str | None = Field(
        None,
        description="The body as text. Without it, the body is empty.",
        json_schema_extra={"maxLength": INLINE_BYTES_MAX},
    )
    body_base64: str | None = Field(
        None, description="The body as bytes, up to 64 KiB.", json_schema_extra={"pattern": BASE64}
    )


# The namespace of the ledger stands in front of a scope, and counts.
Scope = Annotated[str, Field(json_schema_extra={"minLength": 1, "maxLength": SCOPE_BYTES_MAX})]
Key = Annotated[
    str,
    Field(
        description="The whole key, or as the log shows it: 20 characters and `...`.",
        json_schema_extra={"minLength": 1, "maxLength": KEY_BYTES_MAX},
    ),
]
Reason = Annotated[str, Field(json_schema_extra=text(REASON_BYTES_MAX))]
# A response is for HTTP claims, a value for all others, and both only for what happened.
_RESOLVE: Schema = {
    "allOf": [
        not_together("value", "response"),
        {
            "if": {"required": ["verdict"], "properties": {"verdict": {"const": "not_committed"}}},
            "then": {"properties": {"value": {"type": "null"}, "response": {"type": "null"}}},
        },
        {
            "if": {"required": ["scope"], "properties": {"scope": {"pattern": "^http:"}}},
            "then": {"properties": {"value": {"type": "null"}}},
            "else": {"properties": {"response": {"type": "null"}}},
        },
    ]
}


class ResolveSent(Sent):
    model_config = ConfigDict(json_schema_extra=_RESOLVE)

    scope: Scope
    key: Key
    version: int = Field(
        ge=1, le=_VERSION_MAX, description="The version that was looked at. Any other, and nothing is done."
    )
    verdict: Literal["committed", "not_committed"]
    value: Any = Field(None, description="With `committed`: the result of the effect. Not for an HTTP claim.")
    response: ResponseSent | None = Field(
        None, description="With `committed`, on an HTTP claim: what the client's retry gets. Not together with `value`."
    )
    reason: Reason = Field(description="How this is known. It is kept with who said it.")


class AbandonSent(Sent):
    scope: Scope
    key: Key
    version: int = Field(
        ge=1, le=_VERSION_MAX, description="The version that was looked at. Any other, and nothing is done."
    )
    reason: Reason = Field(description="Why. It is kept with who said it.")
    force: bool = Field(default=False, description="Also while the lease runs. The claim is then always in doubt.")


class PurgeShown(BaseModel):
    deleted_count: int


@router.get("", response_model=ClaimList, summary="List claims")
async def list_claims(
    request: Request,
    scope: Annotated[str | None, Query(description="Only of this scope.", max_length=255)] = None,
    status: Annotated[Status | None, Query(description="Only with this status.")] = None,
    limit: Limit = LIMIT_DEFAULT,
    after: After = "",
    oldest: Annotated[
        bool, Query(description="The oldest first. Each page then reads every claim that matches.")
    ] = False,
) -> Response:
    ledger = hub_of(request).ledger
    return JSONResponse(await claims.list_claims(ledger, scope, status, limit, oldest=oldest, after=after))


@router.get("/show", response_model=ClaimWhole, summary="Look at one claim and what is kept of its outcome")
async def show_claim(
    request: Request,
    scope: Annotated[str, Query(max_length=255)],
    key: Annotated[str, Query(max_length=1024)],
) -> Response:
    hub = hub_of(request)
    return JSONResponse(await claims.show_claim(hub.ledger, hub.response_form, scope, key))


@router.post(
    "/resolve",
    response_model=ClaimWhole,
    responses={409: {"description": "It is not in doubt, or not any more under this version."}},
    summary="End a doubt",
)
async def resolve_claim(sent: ResolveSent, request: Request) -> Response:
    hub = hub_of(request)
    told = await claims.resolve_claim(
        hub.ledger,
        hub.response_form,
        principal_of(request.scope),
        scope=sent.scope,
        key=sent.key,
        version=sent.version,
        verdict=sent.verdict,
        value=sent.value,
        response=None if sent.response is None else Given(**sent.response.model_dump()),
        reason=sent.reason,
    )
    return JSONResponse(told)


@router.post(
    "/abandon",
    response_model=ClaimWhole,
    responses={409: {"description": "Its lease runs, or it is not in progress, or not any more under this version."}},
    summary="End a claim whose holder will not",
)
async def abandon_claim(sent: AbandonSent, request: Request) -> Response:
    """It has failed if it may be repeated; otherwise it is in doubt."""
    hub, actor = hub_of(request), principal_of(request.scope)
    return JSONResponse(await claims.abandon_claim(hub.ledger, hub.response_form, actor, **sent.model_dump()))


@router.post("/purge", response_model=PurgeShown, summary="Delete what is past its retention")
async def purge_claims(request: Request) -> Response:
    return JSONResponse({"deleted_count": await claims.purge_claims(hub_of(request).ledger)})
