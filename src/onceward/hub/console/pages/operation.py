"""One operation: what a retry would get, its timeline, its stored result, and its recent checks."""

from __future__ import annotations

from starlette.responses import Response

from onceward.errors import NotFound
from onceward.http.response.replay import stored_response
from onceward.hub.claims.claims import show_claim
from onceward.hub.claims.given_response import is_http
from onceward.hub.console.claims.curl import curl_of
from onceward.hub.console.claims.provider import reconciled_tool
from onceward.hub.console.claims.retry import retry_sentence
from onceward.hub.console.claims.timeline import timeline
from onceward.hub.console.visit import Visit
from onceward.ledger.internals import dispatcher_of

# After a form, the page says what has happened.
NOTICES = {
    "resolved-committed": ("good", "Recorded: it happened. The next retry gets this result."),
    "resolved-not_committed": ("good", "Recorded: it did not happen. The next retry runs it again."),
    "provider-committed": ("good", "The provider says that it happened. The doubt has ended."),
    "provider-not_committed": ("good", "The provider says that it did not happen, and will not. The doubt has ended."),
    "provider-open": ("warn", "The provider does not know yet. The operation is still in doubt; ask again later."),
}
_CHECKS = {
    "processing_started": "ran",
    "duplicate_completed": "replayed",
    "duplicate_processing": "409: another attempt was running",
    "fingerprint_mismatch": "422: another request had used this key",
    "in_doubt": "409: in doubt",
    "expired": "409: its result is no longer stored",
}


async def show(visit: Visit) -> Response:
    """Show one operation, by its scope and key."""
    console = visit.console
    scope, key = visit.query("scope"), visit.request.query_params.get("key", "")
    claim = await show_claim(console.ledger, console.codec, scope, key)
    entry = await console.ledger.read(scope, key)
    if entry is None:
        raise NotFound(f"the scope {scope!r} has no claim with this key")
    now = (await dispatcher_of(console.ledger).read([])).now
    headers: tuple[tuple[bytes, bytes], ...] = ()
    if visit.sees_secrets and entry.outcome.code is not None and entry.outcome.body is not None:
        headers = stored_response(console.codec, entry).headers
    return await visit.page(
        "operation.html",
        claim=claim,
        retry=retry_sentence(entry, scope, now, proved_dead=dispatcher_of(console.ledger).proved_dead(entry.holder)),
        steps=timeline(claim, entry.holder),
        headers=[(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers],
        curl=curl_of(claim, str(visit.request.base_url)) if is_http(scope) and console.hub is not None else None,
        checks=None if console.checks is None else console.checks.of(scope, key),
        check_words=_CHECKS,
        notice=NOTICES.get(visit.query("notice")),
        asks=reconciled_tool(console, scope, key) is not None,
        may_act=visit.may_act,
        sees=visit.sees_secrets,
    )
