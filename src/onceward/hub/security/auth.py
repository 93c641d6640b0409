"""Authentication and authorization: a bearer token becomes a principal with scopes, before anything else is done.

The token is in the header `Authorization: Bearer <token>`. A page in a browser cannot set headers on a WebSocket. It
offers two subprotocols instead, `onceward` and `onceward.bearer.<token>`, and the hub accepts `onceward`. A token is
never read from the URL. Until the first token is created, a client on this machine is `local` and may do everything.

Tokens are looked up for every request: a revoked token is refused from the next request on. A stream lasts as long as
its client likes, so its token is looked up periodically.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from starlette.concurrency import run_in_threadpool

from onceward.core.log_event import log_event
from onceward.errors import StoreClosed, StoreUnavailable
from onceward.http import problem
from onceward.http.asgi_types import App, Message, Receive, Send
from onceward.http.problem import Response
from onceward.hub.db.engine import Database
from onceward.hub.db.timestamps import now_text
from onceward.hub.security import tokens
from onceward.hub.security.client_address import is_local_client
from onceward.hub.security.scopes import Needed, part_of, scope_needed, scopes_in, scopes_of, sufficient_scopes
from onceward.hub.security.tokens import TokenLookup
from onceward.hub.web.problems import refuse, store_failed

logger = logging.getLogger("onceward.hub")

SUBPROTOCOL = "onceward"
_BEARER_SUBPROTOCOL = "onceward.bearer."

_CHALLENGE = ((b"www-authenticate", b"Bearer"),)
_NO_TOKEN = "This request requires a token. Send the header Authorization: Bearer <token>."  # noqa: S105  # a sentence
_BAD_TOKEN = "The token is malformed, unknown or revoked."  # noqa: S105  # a sentence
_EXPIRED = "The token expired at {}. Create a new one: onceward token create NAME --scope read --expires 90d"
_NOT_LOCAL = (
    "Without tokens, this hub accepts requests only from its own machine, and not through a proxy."
    " Create a token: onceward token create NAME --scope read"
)
# The length of a timestamp up to its hour, as in `2026-11-16T03`.
_HOUR_CHARACTERS = 13
_REST_OF_HOUR = ":00:00.000000Z"


@dataclass(frozen=True, slots=True)
class Principal:
    """The caller of a request: the name of its token, and the token's scopes in the part of the hub that is asked for.

    A caller without a token has no `token_id`.
    """

    name: str
    scopes: frozenset[str]
    token_id: str | None = None


@dataclass(frozen=True, slots=True)
class Credentials:
    """Everything that decides whether a request is allowed, so that it can be checked again. Never show the token."""

    token_text: str | None = field(repr=False)
    is_local: bool
    needed: Needed
    part: str = ""


LOCAL = Principal("local", frozenset(tokens.SCOPES))
ANONYMOUS = Principal("anonymous", frozenset())


def principal_of(scope: Any) -> str:
    """Return the name of the principal, for the idempotency middleware: `principal=principal_of`."""
    found: Principal = scope["state"]["principal"]
    return found.name


def credentials_of(scope: Any) -> Credentials | None:
    """Return the credentials of a request, or None if it did not pass through `AuthMiddleware`."""
    found: Credentials | None = scope.get("state", {}).get("credentials")
    return found


def may(scope: Any, needed: str) -> bool:
    """Return whether the principal has this scope, for handlers that allow more to some callers."""
    found: Principal = scope["state"]["principal"]
    return needed in found.scopes


async def authenticate(
    database: Database, credentials: Credentials, last_uses: LastUses | None = None
) -> Principal | Response:
    """Return the principal by the current state of the database, or a 401 or 403; 503 if the database is down.

    With `last_uses`, the use of a valid token is recorded.
    """
    token_text = credentials.token_text
    try:
        lookup = await tokens.lookup_async(database, token_text or "")
    except StoreUnavailable as error:
        return store_failed(error)
    if last_uses is not None and lookup.token is not None:
        last_uses.record(lookup.token)
    return _authorized(credentials, lookup)


async def authenticate_all(
    database: Database, open_credentials: Collection[Credentials]
) -> dict[Credentials, Principal | Response]:
    """Call `authenticate` for several credentials with one query."""
    texts = {one.token_text or "" for one in open_credentials}
    try:
        if database.is_sqlite:
            lookups = tokens.lookup_all(database, texts)
        else:
            lookups = await run_in_threadpool(tokens.lookup_all, database, texts)
    except StoreUnavailable as error:
        return dict.fromkeys(open_credentials, store_failed(error))
    return {one: _authorized(one, lookups[one.token_text or ""]) for one in open_credentials}


def _authorized(credentials: Credentials, lookup: TokenLookup) -> Principal | Response:
    needed, part = credentials.needed, credentials.part
    return authorize(needed, lookup, credentials.token_text, is_local=credentials.is_local, part=part)


def authorize(
    needed: Needed, lookup: TokenLookup, token_text: str | None, *, is_local: bool, part: str = ""
) -> Principal | Response:
    """Return the principal, or a 401 or 403.

    `token_text` is None if no token was sent. `is_local` means that the client is on this machine. `part` is the part of
    the hub that the request is for.
    """
    if lookup.token is not None:
        token = lookup.token
        principal = Principal(token.name, scopes_in(part, token.scopes), token.token_id)
    elif lookup.expired_at is not None:
        return problem.problem(401, _EXPIRED.format(lookup.expired_at), headers=_CHALLENGE)
    elif token_text is not None:
        return problem.problem(401, _BAD_TOKEN, headers=_CHALLENGE)
    elif lookup.token_required:
        return problem.problem(401, _NO_TOKEN, headers=_CHALLENGE)
    elif not is_local:
        return problem.problem(401, _NOT_LOCAL, headers=_CHALLENGE)
    else:
        principal = LOCAL
    if principal.scopes.isdisjoint(scopes_of(needed)):
        enough = " or ".join(sufficient_scopes(needed, part))
        return problem.problem(403, f"This request requires a token with the scope {enough}.")
    return principal


def sent_token(scope: Any) -> str | None:
    """Return the token of a request: None if it has none, and an empty text if the header is malformed or repeated."""
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


class LastUses:
    """The time of each token's last use, to the hour. No request waits for its write.

    A process writes at most once per token and hour. A failed write is not repeated within the hour.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        # The hour that was written last, by token id.
        self._written: dict[str, str] = {}

    def record(self, token: tokens.Token) -> None:
        """Record that a token was used now, unless this hour is already recorded."""
        hour = now_text()[:_HOUR_CHARACTERS]
        if (token.last_used_at or "")[:_HOUR_CHARACTERS] >= hour or self._written.get(token.token_id) == hour:
            return
        self._written[token.token_id] = hour
        try:
            self._database.writer.post(
                lambda tx: tokens.set_last_use(tx, token.token_id, hour + _REST_OF_HOUR), _log_failure
            )
        except StoreClosed:
            # The hub stops. The next use records it.
            return


def _log_failure(error: BaseException) -> None:
    log_event(logger.warning, "last_use_not_recorded", reason=str(error))


class AuthMiddleware:
    """ASGI middleware that puts the principal into `scope["state"]["principal"]`, or responds 401, 403 or 503."""

    def __init__(self, app: App, database: Database) -> None:
        self.app = app
        self._database = database
        self._last_uses = LastUses(database)

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] not in {"http", "websocket"}:
            await self.app(scope, receive, send)
            return
        websocket = scope["type"] == "websocket"
        needed = scope_needed("GET" if websocket else scope["method"], scope["path"])
        credentials = Credentials(sent_token(scope), is_local_client(scope), needed, part_of(scope["path"]))
        found = ANONYMOUS if needed == "open" else await authenticate(self._database, credentials, self._last_uses)
        if isinstance(found, Response):
            await refuse(scope, receive, send, found)
            return
        scope.setdefault("state", {}).update(principal=found, credentials=credentials)
        if websocket and scope.get("subprotocols"):
            send = _accepting(scope, send)
        await self.app(scope, receive, send)


def _accepting(scope: Any, send: Send) -> Send:
    """Accept the subprotocol `onceward`, and hide the one with the token from the application.

    A browser closes a WebSocket that accepts none of the subprotocols it offered.
    """
    offered = scope["subprotocols"]
    scope["subprotocols"] = [one for one in offered if not one.startswith(_BEARER_SUBPROTOCOL)]
    if SUBPROTOCOL not in offered:
        return send

    async def accepting(message: Message) -> None:
        if message["type"] == "websocket.accept" and not message.get("subprotocol"):
            message = {**message, "subprotocol": SUBPROTOCOL}
        await send(message)

    return accepting
