"""Tokens: their names, scopes and times, and their revocation. Tokens are created on the machine of the hub."""

from __future__ import annotations

from starlette.responses import Response

from onceward.errors import NotFound
from onceward.hub.audit.actor import actor_of
from onceward.hub.audit.log import append
from onceward.hub.console.forms import Form
from onceward.hub.console.rendering import url
from onceward.hub.console.visit import Visit, see_other
from onceward.hub.db.engine import Transaction
from onceward.hub.db_threads import in_thread
from onceward.hub.security import tokens
from onceward.hub.security.tokens import Token

# More are listed by `onceward token list`.
_SHOWN_MAX = 500


async def show(visit: Visit) -> Response:
    """List the tokens: the valid ones first, each kind with the newest first."""
    hub = visit.hub

    def read() -> list[Token]:
        with hub.database.read() as tx:
            return tokens.list_tokens(tx)

    found = (await in_thread(read))[::-1]
    valid = [one for one in found if one.revoked_at is None and not one.is_expired()]
    ended = [one for one in found if one.revoked_at is not None or one.is_expired()]
    shown = [*valid, *ended][:_SHOWN_MAX]
    to_revoke = next((one for one in valid if one.token_id == visit.query("revoke")), None)
    own = visit.visitor.principal.token_id
    notice = "The token is revoked. Its requests are refused from now on." if visit.query("notice") else ""
    return await visit.page("tokens.html", tokens=shown, count=len(found), to_revoke=to_revoke, own=own, notice=notice)


async def revoke(visit: Visit, form: Form) -> Response:
    """Revoke one token by its id."""
    token_id = form.text("token_id")
    actor = actor_of(visit.request.scope, "console")

    def work(tx: Transaction) -> int:
        if not any(one.token_id == token_id for one in tokens.list_tokens(tx)):
            return 0
        count = tokens.revoke(tx, token_id)
        if count:
            append(tx, actor, "token.revoke", token_id, {"revoked": count})
        return count

    if not await visit.hub.database.writer.run(work):
        raise NotFound(f"no valid token has the id {token_id[:40]!r}")
    return see_other(url("tokens", notice="revoked"))
