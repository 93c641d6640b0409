"""Operations in doubt, the oldest first, and the question to their provider."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from onceward.core.claim import Entry
from onceward.errors import InvalidInput
from onceward.hub.audit.recorder import claim_target
from onceward.hub.claims.claims import claim_json, recovery_point_of
from onceward.hub.console.claims.actions import audit_action, record_resolution
from onceward.hub.console.claims.provider import ask_provider, reconciled_tool
from onceward.hub.console.claims.query import parse_query
from onceward.hub.console.claims.redaction import redact_claim
from onceward.hub.console.claims.search import SearchResult, find_doubts
from onceward.hub.console.forms import Form
from onceward.hub.console.pages.operation import NOTICES
from onceward.hub.console.rendering import url
from onceward.hub.console.visit import Visit, see_other

# Cards on one page. The others follow with the filter, or with a bulk action.
_SHOWN_MAX = 50


async def show(visit: Visit) -> Response:
    """Show the operations in doubt that match the filter."""
    text = visit.query("q")
    console, problem = visit.console, ""
    found = SearchResult((), 0)
    try:
        found = await find_doubts(console.ledger, parse_query(text))
    except InvalidInput as error:
        problem = str(error)
    claims = [
        _with_evidence(visit, claim_json(console.ledger, one, found.now), one) for one in found.entries[:_SHOWN_MAX]
    ]
    count = len(found.entries)
    return await visit.page(
        "in_doubt.html",
        400 if problem else 200,
        notice=NOTICES.get(visit.query("notice")),
        q=text,
        problem=problem,
        claims=claims,
        count=f"{count:,}+" if found.after else f"{count:,}",
        shown_max=_SHOWN_MAX,
        has_more=count > _SHOWN_MAX,
    )


def _with_evidence(visit: Visit, claim: dict[str, Any], entry: Entry) -> dict[str, Any]:
    """Add what a person needs for the decision, and hide what the visitor may not see."""
    asks = visit.may_act and reconciled_tool(visit.console, claim["scope"], claim["key"]) is not None
    point = recovery_point_of(visit.console.codec, entry) if visit.sees_secrets else None
    verdict = visit.console.verdicts.of(claim["scope"], claim["key"])
    return {**redact_claim(visit, claim), "asks": asks, "recovery_point": point, "verdict": verdict}


async def ask(visit: Visit, form: Form) -> Response:
    """Run the reconcile hook of one operation, and show the operation after that."""
    console = visit.console
    scope, key, version = form.text("scope"), form.raw("key"), form.number("version")
    async with audit_action(
        console, visit.request, "claim.reconcile", claim_target(scope, key), {"version": version}
    ) as audit:
        answer = await ask_provider(console, scope, key)
        audit.details = {"outcome": answer.outcome}
    console.verdicts.add(scope, key, answer.outcome, answer.detail)
    if answer.outcome != "open":
        await record_resolution(console, scope, key, version, answer.outcome)
    if await console.ledger.read(scope, key) is None:
        # The key of a call that did not happen is free again, as if it had never been used.
        return see_other(url("in-doubt", notice=f"provider-{answer.outcome}"))
    return see_other(url("operation", scope=scope, key=key, notice=f"provider-{answer.outcome}"))
