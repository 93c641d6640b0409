"""Claim routes: read the ledger, and resolve, abandon, forget and purge entries.

They need the scope `admin`, because they show the keys and outcomes of every principal.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import JSONResponse

from onceward.core.key import KEY_BYTES_MAX, SCOPE_BYTES_MAX
from onceward.core.outcome import INLINE_BYTES_MAX
from onceward.http.stored.policy import RETRIABLE_STATUSES
from onceward.hub.audit.actor import actor_of
from onceward.hub.audit.log import Details
from onceward.hub.audit.recorder import StartedAction, claim_target, outcome_details, record_action
from onceward.hub.claims import claims
from onceward.hub.claims.claims import REASON_BYTES_MAX
from onceward.hub.claims.given_response import DENIED_HEADER, HEADER_NAME, GivenResponse
from onceward.hub.security.auth import principal_of
from onceward.hub.state import hub_of
from onceward.hub.web.constraints import BASE64, Schema, not_together, text
from onceward.hub.web.json_body import StrictBody, StrictRoute
from onceward.hub.web.pagination import LIMIT_DEFAULT, After, Limit, PageShown

# The stored statuses, and `expired`: completed, its retention is over, and its key is refused.
ClaimStatus = Literal["in_progress", "completed", "failed", "in_doubt", "expired"]
router = APIRouter(prefix="/api/v1/claims", route_class=StrictRoute, tags=["claims"])


class ClaimShown(BaseModel):
    scope: str
    key: str
    status: ClaimStatus
    version: int = Field(description="The version to pass to `resolve`, `abandon` and `forget`.")
    attempt: int
    created_at: str | None = Field(description="When the key was first claimed.")
    claimed_at: str | None = Field(description="When this version was claimed.")
    lease_until: str | None = Field(
        description="While in progress: when the holder loses the claim unless it renews the lease."
    )
    completed_at: str | None
    expires_at: str | None
    refuse_until: str | None = Field(
        description="Until when the key is refused after its retention; without `expires_at`, when its result is dropped."
    )
    not_done_count: int = Field(description="The number of attempts that certainly did nothing.")
    repeatable: bool
    user_id: str | None
    endpoint: str | None
    note: str | None = Field(description="The reason that was given for a failure, a doubt or a resolution.")


class OutcomeShown(BaseModel):
    code: int | None = Field(description="The status of a stored response; null for other values.")
    bytes: int | None = Field(description="Null if the result was not stored.")
    value: Any = Field(None, description="The stored value, up to 64 KiB.")


class ClaimWhole(ClaimShown):
    recovery_point: Any = Field(description="The last value that a holder recorded with `recovery_point`.")
    outcome: OutcomeShown | None


class ClaimList(PageShown):
    claims: list[ClaimShown]
    next: str | None = Field(deprecated=True, description="The same as `next_after`.")


_NOT_RETRIED: Schema = {"not": {"enum": sorted(RETRIABLE_STATUSES)}}
# The largest integer that every JSON parser reads exactly.
_VERSION_MAX = 2**53 - 1


class ResponseSent(StrictBody):
    """The response that the client's retry gets. `Content-Length` is added."""

    model_config = ConfigDict(json_schema_extra=not_together("body", "body_base64"))

    status: int = Field(
        ge=200,
        le=499,
        description="Must not be a status on which clients retry.",
        json_schema_extra=_NOT_RETRIED,
    )
    headers: dict[str, str | list[str]] = Field(
        {},
        description="Each name maps to one value or to a list. Hop-by-hop and per-response headers are refused.",
        json_schema_extra={"propertyNames": {"pattern": HEADER_NAME, "not": {"pattern": DENIED_HEADER}}},
    )
    body: str | None = Field(
        None,
        description="The body as text. Default: an empty body.",
        json_schema_extra={"maxLength": INLINE_BYTES_MAX},
    )
    body_base64: str | None = Field(
        None, description="The body as base64, up to 64 KiB.", json_schema_extra={"pattern": BASE64}
    )


# The limit includes the ledger's namespace, which is the first part of every scope.
Scope = Annotated[str, Field(json_schema_extra={"minLength": 1, "maxLength": SCOPE_BYTES_MAX})]
Key = Annotated[
    str,
    Field(
        description="The whole key, or its form in the log: the first 20 characters and `...`.",
        json_schema_extra={"minLength": 1, "maxLength": KEY_BYTES_MAX},
    ),
]
Reason = Annotated[str, Field(json_schema_extra=text(REASON_BYTES_MAX))]
# HTTP claims take a response, all other claims a value. Both need the verdict `committed`.
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


class ResolveSent(StrictBody):
    model_config = ConfigDict(json_schema_extra=_RESOLVE)

    scope: Scope
    key: Key
    version: int = Field(
        ge=1,
        le=_VERSION_MAX,
        description="The version that you read. If the claim has another version, nothing is changed.",
    )
    verdict: Literal["committed", "not_committed"]
    value: Any = Field(None, description="With `committed`: the result of the effect. Not allowed on an HTTP claim.")
    response: ResponseSent | None = Field(
        None,
        description="With `committed`, on an HTTP claim: the response for the client's retry. Excludes `value`.",
    )
    reason: Reason = Field(description="How you know the verdict. Recorded together with the principal.")


class AbandonSent(StrictBody):
    scope: Scope
    key: Key
    version: int = Field(
        ge=1,
        le=_VERSION_MAX,
        description="The version that you read. If the claim has another version, nothing is changed.",
    )
    reason: Reason = Field(description="Why the claim is abandoned. Recorded together with the principal.")
    force: bool = Field(
        default=False, description="End the claim even while its lease runs. It is then always in doubt."
    )


class ForgetSent(StrictBody):
    scope: Scope
    key: Key
    version: int = Field(
        ge=1,
        le=_VERSION_MAX,
        description="The version that you read. If the claim has another version, nothing is changed.",
    )
    reason: Reason = Field(description="Why the effect may run again. Logged together with the principal.")


class PurgeShown(BaseModel):
    deleted_count: int


@router.get("", response_model=ClaimList, summary="List claims")
async def list_claims(
    request: Request,
    scope: Annotated[str | None, Query(description="Only claims in this scope.", max_length=255)] = None,
    status: Annotated[ClaimStatus | None, Query(description="Only claims with this status.")] = None,
    limit: Limit = LIMIT_DEFAULT,
    after: After = "",
    oldest: Annotated[bool, Query(description="Oldest first. Each page then reads every matching claim.")] = False,
) -> Response:
    ledger = hub_of(request).ledger
    return JSONResponse(await claims.list_claims(ledger, scope, status, limit, oldest=oldest, after=after))


@router.get("/show", response_model=ClaimWhole, summary="Get a claim and its stored outcome")
async def show_claim(
    request: Request,
    scope: Annotated[str, Query(max_length=255)],
    key: Annotated[str, Query(max_length=1024)],
) -> Response:
    hub = hub_of(request)
    return JSONResponse(await claims.show_claim(hub.ledger, hub.response_codec, scope, key))


@router.post(
    "/resolve",
    response_model=ClaimWhole,
    responses={409: {"description": "The claim is not in doubt, or has another version."}},
    summary="Resolve a claim in doubt",
)
async def resolve_claim(sent: ResolveSent, request: Request) -> Response:
    hub = hub_of(request)
    details = {"version": sent.version, "verdict": sent.verdict, "reason": sent.reason}
    async with _record_action(request, "claim.resolve", sent.scope, sent.key, details) as audit:
        claim = await claims.resolve_claim(
            hub.ledger,
            hub.response_codec,
            principal_of(request.scope),
            scope=sent.scope,
            key=sent.key,
            version=sent.version,
            verdict=sent.verdict,
            value=sent.value,
            response=None if sent.response is None else GivenResponse(**sent.response.model_dump()),
            reason=sent.reason,
        )
        audit.details = outcome_details(claim)
    await hub.doubts.record_resolution(f"{hub.ledger.namespace}:{sent.scope}", claim["key"], sent.version, sent.verdict)
    return JSONResponse(claim)


@router.post(
    "/abandon",
    response_model=ClaimWhole,
    responses={409: {"description": "The lease still runs, the claim is not in progress, or it has another version."}},
    summary="End a claim in place of its holder",
)
async def abandon_claim(sent: AbandonSent, request: Request) -> Response:
    """A repeatable claim becomes failed; any other claim becomes in doubt."""
    hub, actor = hub_of(request), principal_of(request.scope)
    details = {"version": sent.version, "force": sent.force, "reason": sent.reason}
    async with _record_action(request, "claim.abandon", sent.scope, sent.key, details) as audit:
        claim = await claims.abandon_claim(hub.ledger, hub.response_codec, actor, **sent.model_dump())
        audit.details = outcome_details(claim)
    return JSONResponse(claim)


@router.post(
    "/forget",
    response_model=ClaimWhole,
    responses={409: {"description": "The claim is not completed, or has another version."}},
    summary="Remove a completed claim",
)
async def forget_claim(sent: ForgetSent, request: Request) -> Response:
    """The next request or call with this key runs the effect again. Returns the claim as it was."""
    hub, actor = hub_of(request), principal_of(request.scope)
    details = {"version": sent.version, "reason": sent.reason}
    async with _record_action(request, "claim.forget", sent.scope, sent.key, details) as audit:
        claim = await claims.forget_claim(hub.ledger, hub.response_codec, actor, **sent.model_dump())
        audit.details = outcome_details(claim)
    return JSONResponse(claim)


@router.post("/purge", response_model=PurgeShown, summary="Delete entries past their retention")
async def purge_claims(request: Request) -> Response:
    hub = hub_of(request)
    async with record_action(hub.database, actor_of(request.scope), "claim.purge", None, {}) as audit:
        shown = {"deleted_count": await claims.purge_claims(hub.ledger)}
        audit.details = shown
    return JSONResponse(shown)


def _record_action(
    request: Request, action: str, scope: str, key: str, details: Details
) -> AbstractAsyncContextManager[StartedAction]:
    """Write the audit rows of an action on a claim around the block."""
    return record_action(hub_of(request).database, actor_of(request.scope), action, claim_target(scope, key), details)
