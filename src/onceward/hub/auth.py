"""Who asks, and whether they may: a bearer token becomes a principal with scopes, before anything else is done.

`Authorization: Bearer <token>` carries it. A page in a browser cannot set headers on a WebSocket; there it offers two
subprotocols, `onceward` and `onceward.bearer.<token>`, and the hub accepts `onceward`. A token is never read from the
address. Until the first token is created, a client on this machine is `local` and may do everything.

Every request is looked up anew: a revoked token is refused from the next request on. A stream goes on for as long as
its client likes, so who follows one is looked up again and again.
"""

from __future__ import annotations

import functools
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from starlette.concurrency import run_in_threadpool

from onceward.db.engine import Database
from onceward.errors import StoreUnavailable
from onceward.http import problem
from onceward.http.problem import Answer
from onceward.http.wire import App, Message, Receive, Send
from onceward.hub import tokens
from onceward.hub.hosts import is_loopback
from onceward.hub.problems import refuse, store_failed
from onceward.hub.scopes import Needed, scope_needed, scopes_of
from onceward.hub.tokens import Look

SUBPROTOCOL = "onceward"
_BEARER_SUBPROTOCOL = "onceward.bearer."

_CHALLENGE = ((b"www-authenticate", b"Bearer"),)
_NO_TOKEN = "This needs a token: send Authorization: Bearer <token>"  # noqa: S105  # a sentence
_BAD_TOKEN = "This token is malformed, unknown or revoked"  # noqa: S105  # a sentence
_NOT_LOCAL = (
    "Without tokens this hub answers only to its own machine. Make one: onceward token create NAME --scope read"
)


@dataclass(frozen=True, slots=True)
class Principal:
    """Who asks: the name of the token, and what it allows."""

    name: str
    scopes: frozenset[str]


@dataclass(frozen=True, slots=True)
class Visitor:
    """All that a request is judged by, so that it can be judged again. The text of its token is not to be shown."""

    sent: str | None = field(repr=False)
    from_here: bool
    needed: Needed


LOCAL = Principal("local", frozenset(tokens.SCOPES))
ANONYMOUS = Principal("anonymous", frozenset())


def principal_of(scope: Any) -> str:
    """The name of who asks, for the idempotency middleware: `principal=principal_of`."""
    found: Principal = scope["state"]["principal"]
    return found.name


def visitor_of(scope: Any) -> Visitor | None:
    """What a stream is judged by later; None where nobody is judged."""
    found: Visitor | None = scope.get("state", {}).get("visitor")
    return found


def may(scope: Any, needed: str) -> bool:
    """Whether who asks has this scope, for a handler that gives some of them more than others."""
    found: Principal = scope["state"]["principal"]
    return needed in found.scopes


async def judged(database: Database, visitor: Visitor) -> Principal | Answer:
    """Who asks, or why they may not, by what the database says now; 503 when it does not answer."""
    sent = visitor.sent
    try:
        # A reader of SQLite's WAL waits for nobody, and is done sooner than a thread is asked.
        if database.is_sqlite:
            look = tokens.look_now(database, sent or "")
        else:
            look = await run_in_threadpool(tokens.look_now, database, sent or "")
    except StoreUnavailable as error:
        return store_failed(error)
    return verdict(visitor.needed, look, sent, from_here=visitor.from_here)


async def judged_again(database: Database, visitors: Collection[Visitor]) -> dict[Visitor, Principal | Answer]:
    """`judged` for many, with one statement."""
    texts = {visitor.sent or "" for visitor in visitors}
    try:
        if database.is_sqlite:
            looks = tokens.look_at_all(database, texts)
        else:
            looks = await run_in_threadpool(tokens.look_at_all, database, texts)
    except StoreUnavailable as error:
        return dict.fromkeys(visitors, store_failed(error))
    return {one: verdict(one.needed, looks[one.sent or ""], one.sent, from_here=one.from_here) for one in visitors}


def verdict(needed: Needed, look: Look, sent: str | None, *, from_here: bool) -> Principal | Answer:
    """Who asks, or why they may not. `sent` is the token's text, None without one; `from_here`: from this machine."""
    if look.token is not None:
        principal = Principal(look.token.name, look.token.scopes)
    elif sent is not None:
        return problem.problem(401, _BAD_TOKEN, headers=_CHALLENGE)
    elif look.guarded:
        return problem.problem(401, _NO_TOKEN, headers=_CHALLENGE)
    elif not from_here:
        return problem.problem(401, _NOT_LOCAL, headers=_CHALLENGE)
    else:
        principal = LOCAL
    if principal.scopes.isdisjoint(scopes_of(needed)):
        return problem.problem(403, f"This needs a token with the scope {needed}")
    return principal


def sent_token(scope: Any) -> str | None:
    """The token that a request carries: None without any, and empty, which no token is, for what makes no sense."""
    headers = [value for name, value in scope["headers"] if name == b"authorization"]
    offered = [one for one in scope.get("subprotocols") or () if one.startswith(_BEARER_SUBPROTOCOL)]
    if not headers and not offered:
        return None
    if len(headers) + len(offered) > 1:
        return ""
    if offered:
        return offered[0].removeprefix(_BEARER_SUBPROTOCOL) if SUBPROTOCOL in scope["subprotocols"] else ""
    scheme, _, text = headers[0].decode("latin-1").partition(" ")
    return text.strip() if scheme.lower() == "bearer" else ""


class Auth:
    """Lets through who may, with the principal in `scope["state"]["principal"]`; answers 401, 403 or 503 otherwise."""

    def __init__(self, app: App, database: Database) -> None:
        self.app = app
        self._database = database

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] not in {"http", "websocket"}:
            await self.app(scope, receive, send)
            return
        websocket = scope["type"] == "websocket"
        needed = scope_needed("GET" if websocket else scope["method"], scope["path"])
        visitor = Visitor(sent_token(scope), _is_here(scope.get("client")), needed)
        found = ANONYMOUS if needed == "open" else await judged(self._database, visitor)
        if isinstance(found, Answer):
            await refuse(scope, receive, send, found)
            return
        scope.setdefault("state", {}).update(principal=found, visitor=visitor)
        if websocket and scope.get("subprotocols"):
            send = _accepting(scope, send)
        await self.app(scope, receive, send)


def _is_here(client: Any) -> bool:
    """Whether the other end of the connection is on this machine. What a proxy's headers say does not count."""
    return client is not None and _is_loopback_address(client[0])


@functools.lru_cache(maxsize=1024)
def _is_loopback_address(text: str) -> bool:
    return text != "localhost" and is_loopback(text)


def _accepting(scope: Any, send: Send) -> Send:
    """A browser ends a WebSocket that accepts none of the subprotocols it offered; the token is not one to repeat."""
    offered = scope["subprotocols"]
    scope["subprotocols"] = [one for one in offered if not one.startswith(_BEARER_SUBPROTOCOL)]
    if SUBPROTOCOL not in offered:
        return send

    async def accepting(message: Message) -> None:
        if message["type"] == "websocket.accept" and not message.get("subprotocol"):
            message = {**message, "subprotocol": SUBPROTOCOL}
        await send(message)

    return accepting
