"""Actions on operations, as the visitor: recorded in the audit log and in the record of doubts, where there is a hub."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any

from starlette.requests import Request

from onceward.hub.audit.actor import actor_of
from onceward.hub.audit.log import Details
from onceward.hub.audit.recorder import StartedAction, claim_target, outcome_details, record_action
from onceward.hub.claims.claims import resolve_claim
from onceward.hub.claims.given_response import GivenResponse
from onceward.hub.console.console import Console


async def resolve(
    console: Console,
    request: Request,
    *,
    scope: str,
    key: str,
    version: int,
    verdict: str,
    reason: str,
    value: Any = None,
    response: GivenResponse | None = None,
    keeps_value: bool = True,
) -> Mapping[str, Any]:
    """Resolve a doubt, as `POST /api/v1/claims/resolve` does.

    Args:
        console: The console.
        request: The request of the visitor, whose principal is recorded.
        scope: The scope of the operation.
        key: Its key.
        version: The version that the page has shown.
        verdict: `committed` or `not_committed`.
        reason: How the visitor knows.
        value: The result, except for HTTP.
        response: The response, for HTTP.
        keeps_value: Whether the value is stored; false for "happened, answer not kept".

    Returns:
        The operation after that.

    Raises:
        Conflict: It is not in doubt any more, or has another version; nothing was changed.
        InvalidInput: An argument is not valid.
    """
    details = {"version": version, "verdict": verdict, "reason": reason}
    async with audit_action(console, request, "claim.resolve", claim_target(scope, key), details) as audit:
        claim = await resolve_claim(
            console.ledger,
            console.codec,
            actor_of(request.scope).principal,
            scope=scope,
            key=key,
            version=version,
            verdict=verdict,
            reason=reason,
            value=value,
            response=response,
            keeps_value=keeps_value,
        )
        audit.details = outcome_details(claim)
    await record_resolution(console, scope, claim["key"], version, verdict)
    return claim


@contextlib.asynccontextmanager
async def audit_action(
    console: Console, request: Request, action: str, target: str | None, details: Details
) -> AsyncIterator[StartedAction]:
    """Write the audit rows of an action around the block. The ledger of another application has no audit log."""
    actor = actor_of(request.scope, "console")
    if console.hub is None:
        yield StartedAction(actor, action, target, details)
        return
    async with record_action(console.hub.database, actor, action, target, details) as audit:
        yield audit


async def record_resolution(console: Console, scope: str, key: str, version: int, verdict: str) -> None:
    """Record the end of a doubt in the record of doubts, where there is a hub."""
    if console.hub is not None:
        await console.hub.doubts.record_resolution(f"{console.ledger.namespace}:{scope}", key, version, verdict)
