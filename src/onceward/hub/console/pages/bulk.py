"""Bulk actions: the plan first, then one result for each operation. A value is given for one operation at a time only."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from starlette.responses import Response

from onceward.core.json_text import refused
from onceward.errors import InvalidInput, OncewardError, StoreUnavailable
from onceward.hub.claims.claims import COMMITTED, VERDICTS, claim_json
from onceward.hub.console.claims.actions import resolve
from onceward.hub.console.claims.query import parse_query
from onceward.hub.console.claims.search import find_doubts
from onceward.hub.console.forms import Form
from onceward.hub.console.pages.resolution import FINAL_REASONS, reason_of
from onceward.hub.console.visit import Visit

# Operations of one plan: a form that a browser shows quickly, and a request that ends before a proxy gives up.
PLAN_MAX = 200


@dataclass(frozen=True, slots=True)
class PlanItem:
    """One operation of a plan, by the version that was shown."""

    scope: str
    key: str
    version: int


@dataclass(frozen=True, slots=True)
class ItemResult:
    """The result for one operation of a plan."""

    item: PlanItem
    is_done: bool
    message: str


async def plan(visit: Visit) -> Response:
    """Show which operations match, before anything is changed."""
    text = visit.query("q")
    return await _plan_page(visit, text, visit.query("verdict"))


async def _plan_page(visit: Visit, text: str, verdict: str, problem: str = "", reason: str = "") -> Response:
    found = await find_doubts(visit.console.ledger, parse_query(text))
    claims = [claim_json(visit.console.ledger, one, found.now) for one in found.entries[:PLAN_MAX]]
    return await visit.page(
        "bulk.html",
        400 if problem else 200,
        q=text,
        verdict=verdict if verdict in VERDICTS else COMMITTED,
        items=[(claim, _packed(claim)) for claim in claims],
        count=len(found.entries),
        more=bool(found.after) or len(found.entries) > PLAN_MAX,
        plan_max=PLAN_MAX,
        reasons=FINAL_REASONS,
        problem=problem,
        reason=reason,
    )


async def apply(visit: Visit, form: Form) -> Response:
    """Resolve the chosen operations, each guarded by its version, and list the results."""
    verdict = form.text("verdict")
    try:
        items = [_unpacked(text) for text in form.all("item")]
        if not items:
            raise refused("item", "must be chosen: no operation is selected")
        if len(items) > PLAN_MAX:
            raise refused("item", f"can be at most {PLAN_MAX} operations at a time, got {len(items)}")
        if verdict not in VERDICTS:
            raise refused("verdict", f"must be {' or '.join(VERDICTS)}")
        reason = reason_of(form, verdict)
        if not reason:
            raise refused("reason", "is missing: say how you know")
    except InvalidInput as error:
        problem = "; ".join(f"{name} {message}" for name, message in error.fields) or str(error)
        return await _plan_page(visit, form.text("q"), verdict, problem, form.text("reason"))
    results = [await _resolved(visit, item, verdict, reason) for item in items]
    done = sum(one.is_done for one in results)
    return await visit.page("bulk_results.html", results=results, done=done, verdict=verdict)


async def _resolved(visit: Visit, item: PlanItem, verdict: str, reason: str) -> ItemResult:
    try:
        await resolve(
            visit.console,
            visit.request,
            scope=item.scope,
            key=item.key,
            version=item.version,
            verdict=verdict,
            reason=reason,
            keeps_value=False,
        )
    except StoreUnavailable:
        return ItemResult(item, is_done=False, message="the ledger did not respond; look at it again")
    except OncewardError as error:
        return ItemResult(item, is_done=False, message=str(error))
    return ItemResult(item, is_done=True, message="recorded")


def _packed(claim: dict[str, Any]) -> str:
    return json.dumps([claim["scope"], claim["key"], claim["version"]])


def _unpacked(text: str) -> PlanItem:
    try:
        scope, key, version = json.loads(text)
    except (ValueError, TypeError, RecursionError):
        raise refused("item", "is not valid; reload the page") from None
    if not (isinstance(scope, str) and isinstance(key, str) and type(version) is int):
        raise refused("item", "is not valid; reload the page")
    return PlanItem(scope, key, version)
