"""A visit: one request to a page, its visitor, and how the page is rendered.

`endpoint` puts the checks in front of every page, in this order: who sends the request, whether they may see this part
of the console, and, for a form, whether it is from our own page and whether they may change something.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import quote

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from onceward.errors import NotFound, OncewardError, StoreUnavailable
from onceward.hub.console.claims.search import count_doubts
from onceward.hub.console.console import Console, console_of
from onceward.hub.console.forms import Form, read_form
from onceward.hub.console.rendering import render
from onceward.hub.console.visitors import Visitor, anonymous_visitor, set_cookies
from onceward.hub.security.scopes import SAFE_METHODS
from onceward.hub.web.problems import response_to
from onceward.hub.web.upload import AttachmentUpload, Upload, receive_attachment
from onceward.store.failure_log import report

if TYPE_CHECKING:
    from onceward.hub.state import HubState

HOME, LOGIN = "/console/", "/console/login"
THEME_COOKIE = "onceward_theme"
THEMES = ("light", "dark")
JSON = "application/json"
FORM_TOKEN = "form_token"  # noqa: S105  # the name of a field
# Doubts that the badge counts.
_BADGE_MAX = 99
_UNAUTHORIZED, _FORBIDDEN, _SEE_OTHER = 401, 403, 303


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the console, in its navigation.

    Attributes:
        name: The path after `/console/`.
        title: The title, also in the navigation.
        part: The part of the hub whose scopes count.
        view: The scopes of which one is needed to see it.
        act: The scopes of which one is needed to change something in it.
        needs_hub: Whether it is only for hubs.
        is_more: Whether it is under "More" in the navigation.
    """

    name: str
    title: str
    part: str
    view: tuple[str, ...]
    act: tuple[str, ...] = ()
    needs_hub: bool = False
    is_more: bool = False

    @property
    def path(self) -> str:
        return f"{HOME}{self.name}"


OVERVIEW = Section("", "Overview", "claims", ("read", "admin"))
IN_DOUBT = Section("in-doubt", "In doubt", "claims", ("read", "admin"), ("admin",))
OPERATIONS = Section("operations", "Operations", "claims", ("read", "admin"), ("admin",))
TURNS = Section("turns", "Turns", "turns", ("read",), needs_hub=True)
EVENTS = Section("events", "Events", "events", ("read",), needs_hub=True)
TOPICS = Section("topics", "Topics", "topics", ("read",), needs_hub=True, is_more=True)
TASKS = Section("tasks", "Tasks", "tasks", ("read",), ("write",), needs_hub=True, is_more=True)
INGEST = Section("ingest", "Ingest", "ingest", ("read",), ("admin",), needs_hub=True, is_more=True)
STORAGE = Section("storage", "Storage", "storage", ("admin",), ("admin",), needs_hub=True, is_more=True)
TOKENS = Section("tokens", "Tokens", "", ("admin",), ("admin",), needs_hub=True, is_more=True)
AUDIT = Section("audit", "Audit", "audit", ("admin",), needs_hub=True, is_more=True)
SECTIONS = (OVERVIEW, IN_DOUBT, OPERATIONS, TURNS, EVENTS, TOPICS, TASKS, INGEST, STORAGE, TOKENS, AUDIT)


@dataclass(frozen=True, slots=True)
class Visit:
    """One request to a page by a visitor who may see it."""

    request: Request
    console: Console
    visitor: Visitor
    section: Section | None = None

    @property
    def may_act(self) -> bool:
        """True if the visitor may change something in this section."""
        return self.section is not None and self.visitor.may(self.section.part, *self.section.act)

    @property
    def sees_secrets(self) -> bool:
        """True if the visitor may see whole keys, stored results and recovery points of all principals."""
        return self.visitor.may("claims", "admin")

    @property
    def hub(self) -> HubState:
        """The hub. A console without one has no such pages, which is an error that the visitor sees."""
        if self.console.hub is None:
            raise NotFound("this console shows a ledger without a hub, so this page does not exist")
        return self.console.hub

    @property
    def is_script(self) -> bool:
        """True if a script of ours sends the request, which reads JSON instead of a page."""
        return self.request.headers.get("accept") == JSON

    def require_form_token(self, upload: Upload) -> None:
        """Refuse an upload that is not from one of our pages. The form sends its token before the file."""
        if not self.visitor.is_form_token(next(iter(upload.all(FORM_TOKEN)), "")):
            raise _not_our_form()

    def query(self, name: str) -> str:
        return self.request.query_params.get(name, "").strip()

    async def page(self, template: str, status: int = 200, **values: Any) -> Response:
        """Render a page.

        Args:
            template: The name of a file in `templates/`.
            status: The HTTP status.
            values: The variables of the template.

        Returns:
            The response.
        """
        shared: dict[str, Any] = {
            "visit": self,
            "visitor": self.visitor,
            "sections": [one for one in SECTIONS if self._offers(one)],
            "section": self.section,
            "theme": self.theme,
            "here": str(self.request.url.path) + (f"?{self.request.url.query}" if self.request.url.query else ""),
            "now": datetime.datetime.now(datetime.UTC),
            "badge": await self._badge(),
            "about": self.console.about,
            "is_hub": self.console.hub is not None,
        }
        return HTMLResponse(render(template, {**shared, **values}), status)

    @property
    def theme(self) -> str:
        found = self.request.cookies.get(THEME_COOKIE, "")
        return found if found in THEMES else ""

    def _offers(self, section: Section) -> bool:
        if section.needs_hub and self.console.hub is None:
            return False
        return self.visitor.may(section.part, *section.view)

    async def _badge(self) -> str:
        """Return the number of doubts for the navigation; empty if there are none, or they cannot be counted."""
        if not self._offers(IN_DOUBT):
            return ""
        try:
            count, more = await count_doubts(self.console.ledger, _BADGE_MAX)
        except OncewardError:
            return ""
        return f"{count}+" if more else str(count or "")


Get: TypeAlias = Callable[[Visit], Awaitable[Response]]
Post: TypeAlias = Callable[[Visit, Form], Awaitable[Response]]
Attach: TypeAlias = Callable[[Visit, AttachmentUpload], Awaitable[Response]]
Endpoint: TypeAlias = Callable[[Request], Awaitable[Response]]


def endpoint(
    section: Section | None,
    get: Get | None = None,
    post: Post | None = None,
    *,
    attach: Attach | None = None,
    get_needs_act: bool = False,
) -> Endpoint:
    """Return the handler of a page.

    Args:
        section: The section, whose scopes are needed; None for pages without a login.
        get: Renders the page.
        post: Handles its form, which needs the scopes `act`.
        attach: Handles its form with a file, instead of `post`.
        get_needs_act: Whether the page itself needs the scopes `act`, because it is only about the form.

    Returns:
        The handler.
    """

    async def handle(request: Request) -> Response:
        try:
            response = await _response(request, section, get, post, attach, get_needs_act=get_needs_act)
        except (OncewardError, HTTPException) as error:
            if isinstance(error, StoreUnavailable):
                report(error)
            response = await _error_page(request, error)
        set_cookies(request, response)
        response.headers.setdefault("cache-control", "no-store")
        return response

    return handle


async def _response(
    request: Request,
    section: Section | None,
    get: Get | None,
    post: Post | None,
    attach: Attach | None,
    *,
    get_needs_act: bool,
) -> Response:
    console = console_of(request)
    found = await console.visitors.identify(request)
    if found is None and section is not None:
        return _to_login(request)
    visitor = found or anonymous_visitor(request)
    # The request log and the audit log show this name.
    request.scope.setdefault("state", {})["principal"] = visitor.principal
    visit = Visit(request, console, visitor, section)
    if section is not None and not visitor.may(section.part, *section.view):
        raise HTTPException(_FORBIDDEN, f"This page requires a token with the scope {' or '.join(section.view)}.")
    if request.method in SAFE_METHODS:
        if get is None:
            raise HTTPException(405, "This page only accepts its form.", {"allow": "POST"})
        if section is not None and get_needs_act and not visit.may_act:
            raise _may_not_act(section)
        return await get(visit)
    if attach is not None and section is not None:
        # The scope before any byte of the body, and the token of the form before any byte of the file.
        if not visit.may_act:
            raise _may_not_act(section)
        async with receive_attachment(request, visit.hub, visitor.principal.name, visit.require_form_token) as received:
            return await attach(visit, received)
    if post is None:
        raise HTTPException(405, "This page has no form.", {"allow": "GET, HEAD"})
    form = await read_form(request)
    if not visitor.is_form_token(form.text(FORM_TOKEN)):
        raise _not_our_form()
    if section is not None and not visit.may_act:
        raise _may_not_act(section)
    return await post(visit, form)


def _not_our_form() -> HTTPException:
    return HTTPException(
        _FORBIDDEN, "The form is not from this console, or too old. Go back, reload the page, and send it again."
    )


def _may_not_act(section: Section) -> HTTPException:
    return HTTPException(_FORBIDDEN, f"This action requires a token with the scope {' or '.join(section.act)}.")


def _to_login(request: Request) -> Response:
    if request.method not in SAFE_METHODS:
        raise HTTPException(_UNAUTHORIZED, "You are not logged in, or your session has ended. Log in and try again.")
    here = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    return RedirectResponse(f"{LOGIN}?next={quote(here, safe='')}", _SEE_OTHER)


def safe_next_path(text: str) -> str:
    """Return a page of the console to go to, never one of another site."""
    plain = text.startswith(HOME) and not any(one in text for one in ("\\", "//", "\r", "\n", "\t"))
    return text if plain else HOME


def see_other(path: str) -> Response:
    """Redirect to a page after a form, so that reloading it does not send the form again."""
    return RedirectResponse(path, _SEE_OTHER)


async def _error_page(request: Request, error: Exception) -> Response:
    found = response_to(error)
    if request.headers.get("accept") == JSON:
        return Response(found.body, found.status, {name.decode(): value.decode() for name, value in found.headers})
    problem = json.loads(found.body)
    visitor: Visitor | None = None
    console = console_of(request)
    if not isinstance(error, StoreUnavailable):
        try:
            visitor = await console.visitors.identify(request)
        except OncewardError:
            visitor = None
    visit = Visit(request, console, visitor or anonymous_visitor(request))
    fields = [one for one in problem.get("errors", ()) if one["message"] not in problem["detail"]]
    response = await visit.page("error.html", found.status, problem=problem, fields=fields)
    for name, value in found.headers:
        if name in (b"retry-after", b"allow"):
            response.headers[name.decode()] = value.decode()
    return response
