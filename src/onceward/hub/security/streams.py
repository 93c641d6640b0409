"""Open streams and waiting requests: a limit per principal, and their end when the token stops being valid.

Three kinds of requests continue after they were authenticated:

    feed   `/ws` and `/api/v1/events/stream`; the feed ends them with an error that contains the id to resume from
    turn   `/chat/stream` and `/turns/{id}/events`; ended here, with a comment
    wait   a request with a key, or to `/chat`, that waits for another one (`Prefer: wait`); ended here, with 401

Feeds and turns count towards `hub.max_streams_per_principal`. Waiting requests do not: they last at most a minute.
Requests that are ended here are cancelled, as if their client had disconnected. Work that has started continues.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from onceward.http import problem
from onceward.http.asgi_types import App, Message, Receive, Send
from onceward.http.problem import Response
from onceward.http.request.headers import wait_seconds_of
from onceward.hub.events.asgi import connection
from onceward.hub.events.handshake import UNAUTHORIZED
from onceward.hub.security.auth import Credentials, credentials_of, principal_of
from onceward.hub.security.scopes import SAFE_METHODS
from onceward.hub.web.problems import refuse
from onceward.hub.web.refusals import Refusals

_Kind: TypeAlias = Literal["feed", "turn", "wait"]

RETRY_SECONDS = 5
# A feed session is asked this often to end itself, and then cancelled: before its handshake, it cannot end itself.
_GENTLE_DISMISSALS = 2
# Time to send the last bytes to a client that does not read.
_CLOSE_SECONDS = 0.5
_CLOSING_COMMENT = b": unauthorized\n\n"
_KEYS = frozenset({b"idempotency-key", b"x-idempotency-key"})


@dataclass(slots=True, eq=False)
class _OpenStream:
    """An open stream or a waiting request."""

    kind: _Kind
    credentials: Credentials
    limit: asyncio.Timeout
    dismissals: int = 0


class OpenStreams:
    """Open streams and waiting requests of one process."""

    def __init__(self, max_per_principal: int) -> None:
        self.max_per_principal = max_per_principal
        self.refusals = Refusals()
        self._open: set[_OpenStream] = set()
        self._counts: Counter[str] = Counter()

    @property
    def credentials(self) -> set[Credentials]:
        return {one.credentials for one in self._open}

    def enter(self, principal: str) -> bool:
        """Count another stream of the principal. False if the limit is reached."""
        if self._counts[principal] >= self.max_per_principal:
            return False
        self._counts[principal] += 1
        return True

    def leave(self, principal: str) -> None:
        self._counts[principal] -= 1
        if not self._counts[principal]:
            del self._counts[principal]

    @contextlib.asynccontextmanager
    async def until_dismissed(self, kind: _Kind, credentials: Credentials) -> Any:
        """Run the block, and raise `TimeoutError` in it when `dismiss` is called with these credentials."""
        async with asyncio.timeout(None) as limit:
            one = _OpenStream(kind, credentials, limit)
            self._open.add(one)
            try:
                yield limit
            finally:
                self._open.discard(one)

    def dismiss(self, credentials: Credentials) -> None:
        """End the streams and requests with these credentials. Call it repeatedly until none is left."""
        now = asyncio.get_running_loop().time()
        for one in list(self._open):
            if one.credentials != credentials or one.limit.expired():
                continue
            one.dismissals += 1
            if one.kind != "feed" or one.dismissals > _GENTLE_DISMISSALS:
                one.limit.reschedule(now)


class StreamsMiddleware:
    """ASGI middleware behind `AuthMiddleware` that counts and ends streams and waiting requests."""

    def __init__(self, app: App, streams: OpenStreams, *, always_waits: bool = False) -> None:
        self.app = app
        self._streams = streams
        # Duplicates wait even without `Prefer: wait`.
        self._always_waits = always_waits

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        kind = self._kind(scope)
        credentials = credentials_of(scope)
        if kind is None or credentials is None:
            await self.app(scope, receive, send)
        elif kind == "wait":
            await self._run(kind, credentials, scope, receive, send)
        else:
            principal = principal_of(scope)
            if not self._streams.enter(principal):
                client = scope.get("client")
                self._streams.refusals.add("too_many_streams", client[0] if client else None)
                await refuse(scope, receive, send, _too_many(self._streams.max_per_principal))
                return
            try:
                await self._run(kind, credentials, scope, receive, send)
            finally:
                self._streams.leave(principal)

    def _kind(self, scope: Any) -> _Kind | None:
        if scope["type"] != "http":
            return "feed" if scope["type"] == "websocket" else None
        path: str = scope["path"]
        if path == "/api/v1/events/stream":
            return "feed"
        if path == "/chat/stream" or (path.startswith("/turns/") and path.endswith("/events")):
            return "turn"
        if scope["method"] in SAFE_METHODS:
            return None
        return "wait" if self._waits(scope) else None

    def _waits(self, scope: Any) -> bool:
        prefer, has_key = [], False
        for name, value in scope["headers"]:
            if name == b"prefer":
                prefer.append(value.decode("latin-1"))
            elif name in _KEYS:
                has_key = True
        if scope["path"] != "/chat" and not has_key:
            return False
        return bool(wait_seconds_of(prefer)) or (self._always_waits and has_key)

    async def _run(self, kind: _Kind, credentials: Credentials, scope: Any, receive: Receive, send: Send) -> None:
        response = _Response(send)
        limit: asyncio.Timeout | None = None
        try:
            async with self._streams.until_dismissed(kind, credentials) as limit:
                await self.app(scope, receive, response.send)
        except TimeoutError:
            if limit is None or not limit.expired():
                raise
            await response.end(scope, receive)


class _Response:
    """A response in progress: its state, and how to end it early."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._started = self._is_over = self._is_stream = False

    async def send(self, message: Message) -> None:
        kind = message["type"]
        if kind == "http.response.start":
            self._is_stream = any(
                name == b"content-type" and value.startswith(b"text/event-stream") for name, value in message["headers"]
            )
        elif kind in {"http.response.body", "websocket.http.response.body"}:
            self._is_over = not message.get("more_body", False)
        elif kind == "websocket.close":
            self._is_over = True
        self._started = True
        await self._send(message)

    async def end(self, scope: Any, receive: Receive) -> None:
        if self._is_over:
            return
        if not self._started and scope["type"] == "http":
            await refuse(scope, receive, self._send, _REVOKED)
            return
        server = connection(scope)
        try:
            async with asyncio.timeout(_CLOSE_SECONDS):
                if scope["type"] == "websocket":
                    await self._send({"type": "websocket.close", "code": UNAUTHORIZED.number, "reason": ""})
                    return
                if self._is_stream:
                    await self._send({"type": "http.response.body", "body": _CLOSING_COMMENT, "more_body": False})
                    return
        except TimeoutError:
            pass
        except OSError:
            return
        if server is not None:
            server.cut(b"", UNAUTHORIZED.number, "")


_REVOKED = problem.problem(
    401,
    "The token expired or was revoked, or a token became required, while the request was waiting.",
    headers=((b"www-authenticate", b"Bearer"),),
)


def _too_many(limit: int) -> Response:
    detail = f"At most {limit} streams may be open for one token name (hub.max_streams_per_principal). Close one first."
    return problem.problem(429, detail, retry_after=RETRY_SECONDS)
