"""Login with a token, and logout."""

from __future__ import annotations

from starlette.responses import Response

from onceward.hub.audit import log as audit_log
from onceward.hub.audit.actor import Actor
from onceward.hub.console.forms import Form
from onceward.hub.console.sessions import create_session, end_session, new_session_id
from onceward.hub.console.visit import HOME, SECTIONS, Visit, safe_next_path, see_other
from onceward.hub.console.visitors import SESSION_COOKIE, drop_cookie, set_cookie
from onceward.hub.db.engine import Transaction
from onceward.hub.security import tokens
from onceward.hub.security.scopes import scopes_in
from onceward.hub.web.request_log import current_request_id

_REFUSED = "The token is malformed, unknown, revoked or expired. Check that you have copied all of it."
_TOO_NARROW = (
    "This token is valid, but it cannot open any page of the console. Create one with the scope read, and with admin to"
    " resolve doubts."
)


async def show(visit: Visit) -> Response:
    """Show the form, or the console to a visitor who needs no login."""
    if visit.visitor.principal.scopes:
        return see_other(safe_next_path(visit.query("next")))
    return await visit.page("login.html", next=safe_next_path(visit.query("next")), problem="")


async def log_in(visit: Visit, form: Form) -> Response:
    """Open a session for the token in the form. The check takes the same time for every token."""
    hub, following = visit.console.hub, safe_next_path(form.text("next"))
    if hub is None:
        return see_other(HOME)
    client = visit.request.client
    address = client.host if client is not None else ""
    visit.console.login_limit.check(address)
    token = (await tokens.lookup_async(hub.database, form.text("token"))).token
    if token is None:
        visit.console.login_limit.failed(address)
        return await visit.page("login.html", 401, next=following, problem=_REFUSED)
    if not any(scopes_in(one.part, token.scopes).intersection(one.view) for one in SECTIONS):
        return await visit.page("login.html", 403, next=following, problem=_TOO_NARROW)
    session_id = new_session_id()
    actor = Actor(token.name, "console", token.token_id, address or None, current_request_id() or None)

    def store(tx: Transaction) -> None:
        create_session(tx, session_id, token.token_id)
        audit_log.append(tx, actor, "console.login", None, {})

    await hub.database.writer.run(store)
    response = see_other(following)
    set_cookie(visit.request, response, SESSION_COOKIE, session_id)
    return response


async def log_out(visit: Visit, _form: Form) -> Response:
    """End the session."""
    session_id, hub = visit.visitor.session_id, visit.console.hub
    if hub is not None and session_id:
        await hub.database.writer.run(lambda tx: end_session(tx, session_id))
    response = see_other("/console/login")
    drop_cookie(visit.request, response, SESSION_COOKIE)
    return response
