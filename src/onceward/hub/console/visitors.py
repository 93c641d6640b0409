"""Visitors of the console: who sends a request, and what they may see and do.

A visitor is a session, or, while the hub requires no token, a client on this machine. Forms carry a token that is derived
from a cookie which another site can neither read nor set, so that only our own pages can send them.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass, field
from typing import Protocol

from starlette.requests import Request
from starlette.responses import Response

from onceward.hub.audit.actor import local_actor
from onceward.hub.console.sessions import SESSION_SECONDS, find_session
from onceward.hub.db.engine import Database
from onceward.hub.security import tokens
from onceward.hub.security.auth import ANONYMOUS, LOCAL, Principal
from onceward.hub.security.client_address import is_local_client
from onceward.hub.security.scopes import scopes_in

PATH = "/console"
SESSION_COOKIE = "onceward_console"
# Its value is the secret of the forms of visitors without a session: those on this machine, and on the login page.
FORM_COOKIE = "onceward_form"
_FORM_BYTES = 32


@dataclass(frozen=True, slots=True)
class Visitor:
    """The sender of a request to the console.

    Attributes:
        principal: The name and the token. Its scopes are those of the token, narrowed ones included.
        form_secret: The secret from which the token of forms is derived.
        session_id: The cookie of the session; empty for a visitor without a token.
    """

    principal: Principal
    form_secret: str = field(repr=False)
    session_id: str = field(default="", repr=False)

    def may(self, part: str, *scopes: str) -> bool:
        """Return whether the visitor has one of the scopes in a part of the hub."""
        return not scopes_in(part, self.principal.scopes).isdisjoint(scopes)

    @property
    def form_token(self) -> str:
        """The token that every form of this visitor contains."""
        return hmac.new(self.form_secret.encode(), b"form", hashlib.sha256).hexdigest()

    def is_form_token(self, text: str) -> bool:
        """Return whether this is the token of our forms, so that the form is from one of our pages."""
        return bool(self.form_secret) and hmac.compare_digest(text.encode(), self.form_token.encode())


class Visitors(Protocol):
    """The way in which a console identifies its visitors."""

    async def identify(self, request: Request) -> Visitor | None:
        """Return the sender of a request, or None if they must log in first."""


class HubVisitors:
    """Visitors of a hub: sessions, or clients on this machine while the hub requires no token."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def identify(self, request: Request) -> Visitor | None:
        """Return the sender of a request, or None if they must log in first."""
        session_id = request.cookies.get(SESSION_COOKIE, "")
        session = await find_session(self._database, session_id) if session_id else None
        if session is not None:
            return Visitor(Principal(session.name, session.scopes, session.token_id), session_id, session_id)
        if (await tokens.lookup_async(self._database, "")).token_required or not is_local_client(request.scope):
            return None
        return Visitor(LOCAL, form_secret(request))


class LocalVisitors:
    """Visitors of a console without a hub: clients on this machine, under the name of the user who started it."""

    async def identify(self, request: Request) -> Visitor | None:
        """Return the sender of a request, or None for a client on another machine."""
        if not is_local_client(request.scope):
            return None
        return Visitor(Principal(local_actor().principal, frozenset(tokens.SCOPES)), form_secret(request))


def anonymous_visitor(request: Request) -> Visitor:
    """Return a visitor who has not logged in."""
    return Visitor(ANONYMOUS, form_secret(request))


def form_secret(request: Request) -> str:
    """Return the secret of the forms of a visitor without a session: the cookie, or a new one for this request."""
    found = request.cookies.get(FORM_COOKIE, "")
    if found:
        return found
    made: str | None = getattr(request.state, "form_secret", None)
    if made is None:
        made = request.state.form_secret = secrets.token_urlsafe(_FORM_BYTES)
    return made


def set_cookies(request: Request, response: Response) -> None:
    """Send the cookie of the forms, if this request has made one."""
    made: str | None = getattr(request.state, "form_secret", None)
    if made is not None:
        set_cookie(request, response, FORM_COOKIE, made)


def set_cookie(request: Request, response: Response, name: str, value: str) -> None:
    """Set a cookie that only the console gets, and that no script and no other site can use."""
    secure = request.url.scheme == "https"
    response.set_cookie(
        name, value, max_age=SESSION_SECONDS, path=PATH, secure=secure, httponly=True, samesite="strict"
    )


def drop_cookie(request: Request, response: Response, name: str) -> None:
    secure = request.url.scheme == "https"
    response.delete_cookie(name, path=PATH, secure=secure, httponly=True, samesite="strict")
