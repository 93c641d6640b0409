"""`IdempotencyMiddleware`: every keyed request has one effect and one answer, however often it is sent. Pure ASGI.

app.add_middleware(IdempotencyMiddleware, store="sqlite:///keys.db")     # Starlette, FastAPI
app = IdempotencyMiddleware(app, store="postgresql://…")                 # Litestar, Quart, Django, anything
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
from typing import Any, Unpack, assert_never

from onceward.core.claim import Busy, Claim, InDoubt, Mismatch, Replay
from onceward.core.request import fingerprint_of, key_of, media_type_of, wait_seconds_of
from onceward.errors import InvalidKey, StoreUnavailable
from onceward.http import incoming as bodies
from onceward.http import principal as principals
from onceward.http import problem
from onceward.http.ending import Ending
from onceward.http.events import interrupted, place_of
from onceward.http.exchange import Exchange
from onceward.http.guard import Asked, Guard, Options, PrincipalChanged, retry_seconds
from onceward.http.incoming import Headers, Incoming
from onceward.http.operation import GUARDED, LIFESPAN_KEY, SCOPE_KEY, operation_around
from onceward.http.principal import Principal
from onceward.http.problem import Answer
from onceward.http.replay import INTERRUPTED, answer, client_gone, replay
from onceward.http.routes import asgi_rule
from onceward.http.rules import Rule
from onceward.http.wire import App, Message, Receive, Send
from onceward.ledger import Ledger
from onceward.store import Store

# How long requests whose client went away may still run when the application shuts down.
GRACE_SECONDS = 10.0
# They would send a body past the middleware, or go on behind its end.
_UNRECORDABLE = ("http.response.pathsend", "http.response.zerocopysend", "http.response.trailers")

# What only wakes a waiting request needs no copy of anyone's context variables.
_CONTEXT = contextvars.Context()

logger = logging.getLogger("onceward.http")


class IdempotencyMiddleware:
    """Wraps an ASGI application. `store` is a URL, a store or a ledger; see `Options` for the rest."""

    def __init__(self, app: App, store: str | Store | Ledger, **options: Unpack[Options]) -> None:
        self.app = app
        self._guard = guard = Guard(store, options)
        self._methods = guard.methods if guard.enabled else frozenset()
        self._tasks: dict[asyncio.Task[None], asyncio.Future[None]] = {}
        self._when_done = self._done

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        kind = scope["type"]
        if kind == "http":
            guard = self._guard
            if scope["method"] in self._methods and (not guard.paths or guard.covers(scope["path"])):
                keyed = False
                for name, _ in scope["headers"]:
                    if name == b"idempotency-key" or name == b"x-idempotency-key":  # noqa: PLR1714  # twice as fast
                        keyed = True
                        break
                if keyed and operation_around(scope, SCOPE_KEY) is None:  # else one around this has it in hand
                    exchange = await self._admit(scope, receive, send)
                    if exchange is not None:
                        await self._run(exchange, scope, receive)
                    return
                if not keyed and guard.may_require and self._rule(scope).required:
                    await answer(send, problem.key_required())
                    return
            scope.setdefault(SCOPE_KEY, GUARDED)
        elif kind == "lifespan":
            scope[LIFESPAN_KEY] = (*scope.get(LIFESPAN_KEY, ()), self)
            send = self._closing(send)
        await self.app(scope, receive, send)

    def _rule(self, scope: Any) -> Rule:
        return self._guard.rule(asgi_rule(scope, self.app), scope["path"])

    async def _admit(self, scope: Any, receive: Receive, send: Send) -> Exchange | None:
        """A claim that is to be run; None when the request was answered. What admitting took is not kept meanwhile."""
        headers = Headers(scope["headers"])
        rule = self._rule(scope)
        try:
            key = key_of(headers.all(b"idempotency-key"), headers.all(b"x-idempotency-key"))
        except InvalidKey as error:
            await answer(send, problem.bad_key(str(error)))
            return None
        incoming = await bodies.read(headers, rule, receive)
        if incoming is None:
            return None
        if isinstance(incoming, Answer):
            await answer(send, incoming)
            return None
        owned: Incoming | None = incoming
        try:
            named = self._guard.principal
            who = self._whoever(scope, headers) if named is None else await _named(named(scope))
            asked = self._asked(scope, headers, rule, key, who, incoming.digest)
            try:
                found = await self._guard.admit(asked)
            except StoreUnavailable:
                await answer(send, problem.unavailable())
                return None
            if isinstance(found, Claim):
                exchange = self._exchange(scope, headers, asked, found, incoming, receive, send)
                owned = None  # the exchange has the body now, and may outlast this call
                return exchange
            if found is None:
                scope.setdefault(SCOPE_KEY, GUARDED)
                await self.app(scope, bodies.given_again(incoming, receive), send)
            else:
                await self._answer(found, headers, receive, send)
            return None
        finally:
            if owned is not None:
                owned.close()

    def _asked(self, scope: Any, headers: Headers, rule: Rule, key: str, who: Principal, digest: bytes) -> Asked:
        method, path = scope["method"], scope["path"]
        raw = scope.get("raw_path") or path.encode("utf-8", "surrogateescape")
        media_type = media_type_of(headers.one(b"content-type"))
        wait = wait_seconds_of(headers.all(b"prefer"))
        return Asked(
            key,
            who,
            fingerprint_of(method, raw, scope.get("query_string", b""), media_type, digest, self._guard.variant(scope)),
            f"{method} {path}",
            rule,
            (rule.wait_seconds or 0.0) if wait is None else wait,
        )

    def _whoever(self, scope: Any, headers: Headers) -> Principal:
        """The one that an authentication around this one found, or else the holder of the credentials sent."""
        found = principals.of_user(scope["user"]) if "user" in scope else None
        if found is None:
            found = principals.of_request(headers.credentials, self._guard.session_cookies)
            if found.fleeting:
                self._guard.tell_fleeting()
        return found

    async def _answer(
        self,
        found: Replay | Busy | Mismatch | InDoubt | PrincipalChanged,
        headers: Headers,
        receive: Receive,
        send: Send,
    ) -> None:
        guard = self._guard
        match found:
            case Replay(entry):
                await replay(guard.ledger, guard.form, entry, headers.one(b"last-event-id"), receive, send)
            case Busy(entry):
                if entry.outcome.chunks:
                    await replay(guard.ledger, guard.form, entry, headers.one(b"last-event-id"), receive, send)
                else:
                    await answer(send, problem.busy(retry_seconds(found)))
            case Mismatch():
                await answer(send, problem.mismatch())
            case PrincipalChanged():
                await answer(send, problem.principal_changed())
            case InDoubt():
                await answer(send, problem.in_doubt())
            case _:
                assert_never(found)

    def _exchange(
        self,
        scope: Any,
        headers: Headers,
        asked: Asked,
        claim: Claim,
        incoming: Incoming,
        receive: Receive,
        send: Send,
    ) -> Exchange:
        ending = Ending(self._guard, asked, claim)
        exchange = Exchange(self._guard, asked, ending, incoming, receive, send)
        scope[SCOPE_KEY] = ending.operation
        extensions = scope.get("extensions")
        if extensions:
            scope["extensions"] = {name: value for name, value in extensions.items() if name not in _UNRECORDABLE}
        place = place_of(headers.one(b"last-event-id"))
        if place is not None and place[0] != claim.version:
            exchange.preface = interrupted(INTERRUPTED)
        return exchange

    async def _run(self, exchange: Exchange, scope: Any, receive: Receive) -> None:
        """Run the application in a task of its own: its client going away does not end it."""
        loop = asyncio.get_running_loop()
        task = loop.create_task(exchange.run(self.app, scope))
        # Not the task itself is awaited: who is cancelled while waiting for a task cancels it.
        exchange.caller = caller = loop.create_future()
        self._tasks[task] = caller
        task.add_done_callback(self._when_done, context=_CONTEXT)
        try:
            await caller
        except asyncio.CancelledError:
            if not task.done():
                await self._cancelled(exchange, task, receive)
            if task.done() and not exchange.began:
                await exchange.never_ran()
            raise
        except BaseException:
            task.add_done_callback(_report)
            raise
        if task.done():
            if not exchange.began:  # cancelled before its first step, while this call was not
                await exchange.never_ran()
            task.result()
        else:
            task.add_done_callback(_report)

    async def _cancelled(self, exchange: Exchange, task: asyncio.Task[None], receive: Receive) -> None:
        """Who waits for the handler was cancelled: because the client went away, which does not concern the handler
        unless some of its body is missing, or from outside, which ends it.
        """
        exchange.gone = True
        task.add_done_callback(_report)
        if exchange.is_read and await _has_left(receive):
            return
        task.cancel()
        await asyncio.wait({task})

    def _done(self, task: asyncio.Task[None]) -> None:
        over = self._tasks.pop(task)
        if not over.done():
            over.set_result(None)

    # The application's end.

    def _closing(self, send: Send) -> Send:
        async def closing(message: Message) -> None:
            if message["type"].startswith("lifespan.shutdown"):
                await self._finish()
            await send(message)

        return closing

    async def _finish(self) -> None:
        """Let requests without a client end, then let go of the ledger."""
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=GRACE_SECONDS)
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(set(self._tasks))
        await asyncio.to_thread(self._guard.close)


async def _named(name: Any) -> Principal:
    return principals.named(await name if hasattr(name, "__await__") else name)


async def _has_left(receive: Receive) -> bool:
    probe = asyncio.ensure_future(client_gone(receive))
    while not probe.done():
        # Some cancel again and again until they are obeyed; they are, in a moment.
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait({probe})
    return probe.result()


def _report(task: asyncio.Task[None]) -> None:
    """A handler whose caller is gone raised: nobody else will say so."""
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.error("a request whose client went away raised", exc_info=error)
