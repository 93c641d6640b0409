"""The decision about one operation in doubt: it happened, or it did not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from onceward.core.json_text import refused
from onceward.core.verdict import Final
from onceward.errors import Conflict, InvalidInput
from onceward.hub.claims.claims import COMMITTED, NOT_COMMITTED, VERDICTS, show_claim
from onceward.hub.claims.given_response import GivenResponse, is_http
from onceward.hub.console.claims.actions import resolve
from onceward.hub.console.claims.provider import reconciled_tool
from onceward.hub.console.forms import Form, problem_of
from onceward.hub.console.rendering import url
from onceward.hub.console.visit import Visit, see_other
from onceward.hub.web.json_body import parse

# Why an effect can no longer happen, in the words of the form.
FINAL_REASONS = (
    (Final.PROVIDER_FINAL, "The provider says so", "It states that this did not happen, and will not."),
    (Final.OPERATOR, "I have checked", "I looked it up myself, and take responsibility."),
    (Final.DEADLINE_PASSED, "Too late for it", "The request itself has expired and cannot be accepted any more."),
    (Final.FENCED, "It is locked out", "The other system refuses this version from now on."),
)
_DEFAULTS = {"status": "200", "content_type": "application/json", "headers": "", "body": "", "value": "", "reason": ""}


async def show(visit: Visit) -> Response:
    """Show the evidence and the form."""
    verdict = visit.query("verdict")
    return await _page(visit, visit.query("scope"), visit.request.query_params.get("key", ""), verdict)


async def decide(visit: Visit, form: Form) -> Response:
    """Record the decision, guarded by the version that the form has shown."""
    scope, key, verdict = form.text("scope"), form.raw("key"), form.text("verdict")
    version = form.number("version")
    try:
        await resolve(
            visit.console,
            visit.request,
            scope=scope,
            key=key,
            version=version,
            verdict=verdict,
            reason=reason_of(form, verdict),
            **(_given(form, scope) if verdict == COMMITTED else {}),
        )
    except InvalidInput as error:
        fields = {name: values[0] for name, values in form.fields.items() if values}
        return await _page(visit, scope, key, verdict, fields=fields, problem=problem_of(error), status=400)
    except Conflict as error:
        return await _page(visit, scope, key, verdict, problem=str(error), status=409)
    return see_other(url("operation", scope=scope, key=key, notice=f"resolved-{verdict}"))


async def _page(
    visit: Visit,
    scope: str,
    key: str,
    verdict: str,
    *,
    fields: Mapping[str, str] | None = None,
    problem: str = "",
    status: int = 200,
) -> Response:
    console = visit.console
    claim = await show_claim(console.ledger, console.codec, scope, key)
    return await visit.page(
        "resolution.html",
        status,
        claim=claim,
        verdict=verdict if verdict in VERDICTS else COMMITTED,
        is_http=is_http(scope),
        reasons=FINAL_REASONS,
        fields={**_DEFAULTS, "keeps": "response", "final": "", **(fields or {})},
        problem=problem,
        provider=console.verdicts.of(scope, key),
        asks=reconciled_tool(console, scope, key) is not None,
        sees=visit.sees_secrets,
    )


def reason_of(form: Form, verdict: str) -> str:
    """Return the reason to record. For `not_committed` it begins with the final reason."""
    reason = form.text("reason")
    if verdict != NOT_COMMITTED:
        return reason
    final = form.text("final")
    if final not in {one.value for one in Final}:
        raise refused("final", "must be chosen: it says why the effect can no longer happen")
    if not reason:
        raise refused("reason", "is missing: say how you know")
    return f"{final}: {reason}"


def _given(form: Form, scope: str) -> dict[str, Any]:
    """Return the result that the form gives: a response, a value, or none."""
    if form.text("keeps") == "nothing":
        return {"keeps_value": False}
    if is_http(scope):
        headers = _headers(form.raw("headers"))
        if form.text("content_type"):
            headers = {"Content-Type": [form.text("content_type")], **headers}
        return {"response": GivenResponse(form.number("status"), headers, form.raw("body"))}
    text = form.text("value")
    return {"value": parse(text.encode()) if text else None}


def _headers(text: str) -> dict[str, list[str]]:
    headers: dict[str, list[str]] = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        name, colon, value = line.partition(":")
        if not colon:
            raise refused("headers", f"has the line {line[:60]!r}; each line must be Name: value")
        headers.setdefault(name.strip(), []).append(value.strip())
    return headers
