"""Operations: every entry of the ledger, found with the filter bar."""

from __future__ import annotations

from collections.abc import Iterable

from starlette.responses import Response

from onceward.core.claim import WIRE_STATUSES, Entry
from onceward.errors import InvalidInput
from onceward.hub.claims.claims import claim_json
from onceward.hub.console.claims.query import ClaimQuery, parse_query
from onceward.hub.console.claims.redaction import redact_claim
from onceward.hub.console.claims.search import SearchResult, find_claims
from onceward.hub.console.visit import Visit
from onceward.hub.db_threads import in_thread
from onceward.hub.security import tokens

LIMIT = 100
# The scope of `ledger.run`, with which the hub runs its jobs.
_JOBS = ":call"


async def show(visit: Visit) -> Response:
    """Show the operations that match the filter, whose text is in the URL."""
    text, problem = visit.query("q"), ""
    query, found = ClaimQuery(), SearchResult((), 0)
    try:
        query = parse_query(text)
        scopes = await _http_scopes(visit) if query.exact_key and not query.exact_scope else ()
        found = await find_claims(visit.console.ledger, query, LIMIT, visit.query("after"), scopes)
    except InvalidInput as error:
        problem = str(error)
    ledger = visit.console.ledger
    return await visit.page(
        "operations.html",
        400 if problem else 200,
        q=text,
        problem=problem,
        query=query,
        claims=[
            redact_claim(visit, claim_json(ledger, one, found.now), query.exact_key)
            for one in found.entries
            if query.key or not _is_job(one)
        ],
        found=found,
        statuses=WIRE_STATUSES,
        after=visit.query("after"),
    )


def _is_job(entry: Entry) -> bool:
    """Return whether an entry is that of a periodic job of the hub, which is shown only if its key is asked for."""
    return entry.key.startswith("job:") and entry.scope.endswith(_JOBS)


async def _http_scopes(visit: Visit) -> Iterable[str]:
    """Return the scopes of the hub's own principals, in which a whole key can be read directly."""
    hub = visit.console.hub
    if hub is None:
        return ()

    def names() -> list[str]:
        with hub.database.read() as tx:
            return [token.name for token in tokens.list_tokens(tx)]

    found = dict.fromkeys(["local", "anonymous", *await in_thread(names)])
    return [f"http:user:{name}" for name in found]
