"""`IdempotencyMiddleware`: one effect and one response for each keyed request, however often it is sent. Pure ASGI.

app.add_middleware(IdempotencyMiddleware, store="sqlite:///keys.db")     # Starlette, FastAPI
app = IdempotencyMiddleware(app, store="postgresql://…")                 # Litestar, Quart, Django, anything
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
from collections.abc import Callable
from typing import Any, Unpack

from onceward.core.claim import Busy, Claim, Expired, InDoubt, Mismatch, Replay
from onceward.core.log_event import log_event
from onceward.errors import InvalidKey, StoreUnavailable
from onceward.http import problem
from onceward.http.asgi_types import App, Message, Receive, Send
from onceward.http.keyed import asgi_request
from onceward.http.keyed import principal as principals
from onceward.http.keyed.admission import (
    Admission,
    KeyedRequest,
    PrincipalChanged,
    TooManyKeys,
    compared,
)
from onceward.http.keyed.asgi_request import AsgiBody, AsgiHeaders
from onceward.http.keyed.operation import GUARDED, LIFESPAN_KEY, SCOPE_KEY, outer_operation
from onceward.http.keyed.options import MiddlewareOptions
from onceward.http.keyed.principal import KeyPrincipal
from onceward.http.keyed.refusal import refusal_of
from onceward.http.keyed.rules import Rule, declared
from onceward.http.middleware.handler_lookup import asgi_rule
from onceward.http.problem import Response
from onceward.http.request.headers import fingerprint_of, key_of, media_type_of, wait_seconds_of
from onceward.http.request.key_source import KEY_HEADERS_SOURCE, BodyNeeded, field_of
from onceward.http.response.asgi_exchange import AsgiExchange
from onceward.http.response.replay import INTERRUPTED, client_gone, replay, send_response
from onceward.http.response.settlement import Settlement
from onceward.http.response.shape import echo_of, shaped_send
from onceward.http.response.sse import interrupted, place_of
from onceward.ledger.ledger import Ledger
from onceward.store import Store

# How long requests whose client disconnected may still run when the application shuts down.
GRACE_SECONDS = 10.0
# ASGI extensions with which a response would bypass the middleware, or continue after its body.
_UNRECORDABLE = ("http.response.pathsend", "http.response.zerocopysend", "http.response.trailers")

# An empty context for callbacks that only wake a waiting request: copying the context variables would cost time.
_CONTEXT = contextvars.Context()

logger = logging.getLogger("onceward.http")


class IdempotencyMiddleware:
    """ASGI middleware that makes requests with an `Idempotency-Key` safe to retry.

    Args:
        app: The ASGI application to wrap.
        store: A store URL, a store or a ledger. The middleware opens a URL itself, and closes it at shutdown.
        options: See `MiddlewareOptions`.

    Raises:
        InvalidOption: An option is unknown or has a wrong value.
        InvalidStoreUrl: The store URL is malformed, or its driver is not installed.
    """

    def __init__(self, app: App, store: str | Store | Ledger, **options: Unpack[MiddlewareOptions]) -> None:
        self.app = app
        self._admission = admission = Admission(store, options)
        self._methods = admission.methods if admission.enabled else frozenset()
        self._tasks: dict[asyncio.Task[None], asyncio.Future[None]] = {}
        self._when_done = self._done

    def observe_checks(self, on_check: Callable[[KeyedRequest, str, bool], None]) -> None:
        """Call a function with each check of a key, for the hub's console.

        Args:
            on_check: Gets the request, the status of the check, and whether a stored response is replayed. It must be
                fast, and must not raise.
        """
        self._admission.on_check = on_check

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        kind = scope["type"]
        if kind == "http":
            admission = self._admission
            if scope["method"] in self._methods and (not admission.paths or admission.covers(scope["path"])):
                if declared.keys or admission.finds_keys:
                    await self._find_key(scope, receive, send)
                    return
                keyed = False
                for name, _ in scope["headers"]:
                    if name == b"idempotency-key" or name == b"x-idempotency-key":  # noqa: PLR1714  # twice as fast
                        keyed = True
                        break
                if keyed and outer_operation(scope, SCOPE_KEY) is None:  # else an outer middleware handles it
                    exchange = await self._admit(scope, receive, send)
                    if exchange is not None:
                        await self._run(exchange, scope, receive)
                    return
                if not keyed and (declared.required or admission.requires) and (rule := self._rule(scope)).required:
                    await send_response(shaped_send(send, rule), problem.key_required())
                    return
            scope.setdefault(SCOPE_KEY, GUARDED)
        elif kind == "lifespan":
            scope[LIFESPAN_KEY] = (*scope.get(LIFESPAN_KEY, ()), self)
            message = await receive()
            wrong = await self._admission.check() if message["type"] == "lifespan.startup" else ""
            if wrong:
                await send({"type": "lifespan.startup.failed", "message": wrong})
                return
            receive, send = _push_back(message, receive), self._closing(send)
        await self.app(scope, receive, send)

    def _rule(self, scope: Any) -> Rule:
        return self._admission.rule(asgi_rule(scope, self.app), scope["path"])

    async def _find_key(self, scope: Any, receive: Receive, send: Send) -> None:
        """Handle a request that may carry its key anywhere."""
        rule = self._rule(scope)
        source = rule.source or KEY_HEADERS_SOURCE
        headers, head = AsgiHeaders(scope["headers"]), asgi_request.head_of(scope)
        body: AsgiBody | None = None
        try:
            try:
                key = source.find(head, None)
            except BodyNeeded:
                read = await asgi_request.read(headers, rule, receive)
                if read is None or isinstance(read, Response):
                    await _refuse(shaped_send(send, rule), read)
                    return
                body = read
                key = source.find(head, body.content())
        except InvalidKey as error:
            await send_response(shaped_send(send, rule), problem.bad_key(str(error), field_of(source)))
            if body is not None:
                body.close()
            return
        if key is not None and outer_operation(scope, SCOPE_KEY) is None:  # else an outer middleware handles it
            exchange = await self._admit(scope, receive, send, (rule, key, body))
            if exchange is not None:
                await self._run(exchange, scope, receive)
            return
        try:
            passes = rule.webhook is not None and rule.webhook.passes
            if key is None and rule.required and not (passes and body and passes(head, body.content())):
                await send_response(shaped_send(send, rule), problem.key_required(source.name, field_of(source)))
                return
            scope.setdefault(SCOPE_KEY, GUARDED)
            await self.app(scope, receive if body is None else asgi_request.receive_from(body, receive), send)
        finally:
            if body is not None:
                body.close()

    async def _admit(
        self, scope: Any, receive: Receive, send: Send, found_key: tuple[Rule, str, AsgiBody | None] | None = None
    ) -> AsgiExchange | None:
        """Admit a keyed request. Return the exchange to run, or None if a response was sent.

        It returns before the exchange runs, so that nothing used for admission stays in memory meanwhile.
        """
        headers = AsgiHeaders(scope["headers"])
        if found_key is None:
            rule, read = self._rule(scope), None
            try:
                key = key_of(headers.all(b"idempotency-key"), headers.all(b"x-idempotency-key"))
            except InvalidKey as error:
                await send_response(shaped_send(send, rule), problem.bad_key(str(error)))
                return None
        else:
            rule, key, read = found_key
        if rule.echo or rule.problem is not None:
            send = shaped_send(send, rule, echo_of(headers.one(b"idempotency-key"), key))
        body = await asgi_request.read(headers, rule, receive) if read is None else read
        if body is None or isinstance(body, Response):
            await _refuse(send, body)
            return None
        owned: AsgiBody | None = body
        try:
            choose = self._admission.principal
            if rule.webhook is not None:
                principal = principals.of_sender(rule.webhook.sender)
            elif choose is None:
                principal = self._principal_of(scope, headers)
            else:
                principal = await _named_principal(choose(scope))
            request = self._keyed_request(scope, headers, rule, key, principal, body.digest)
            try:
                found = await self._admission.admit(request)
            except StoreUnavailable as error:
                await send_response(send, problem.store_failed(error))
                return None
            if isinstance(found, Claim):
                exchange = self._exchange(scope, headers, request, found, body, receive, send)
                owned = None  # the exchange has the body now, and may outlast this call
                return exchange
            if found is None:
                scope.setdefault(SCOPE_KEY, GUARDED)
                await self.app(scope, asgi_request.receive_from(body, receive), send)
            else:
                await self._respond(found, headers, receive, send)
            return None
        finally:
            if owned is not None:
                owned.close()

    def _keyed_request(
        self, scope: Any, headers: AsgiHeaders, rule: Rule, key: str, principal: KeyPrincipal, digest: bytes
    ) -> KeyedRequest:
        method, path = scope["method"], scope["path"]
        raw = scope.get("raw_path") or path.encode("utf-8", "surrogateescape")
        media_type = media_type_of(headers.one(b"content-type"))
        wait = wait_seconds_of(headers.all(b"prefer"))
        query, delivery, counted = scope.get("query_string", b""), "", ""
        if not rule.is_plain:
            client = scope.get("client")
            principal, counted = self._admission.scoped(rule, principal, method, raw, client[0] if client else "")
            query, media_type, digest, delivery = compared(rule, query, media_type, digest)
        return KeyedRequest(
            key,
            principal,
            fingerprint_of(method, raw, query, media_type, digest, self._admission.variant(scope)),
            f"{method} {path}",
            rule,
            (rule.wait_seconds or 0.0) if wait is None else wait,
            delivery,
            counted,
        )

    def _principal_of(self, scope: Any, headers: AsgiHeaders) -> KeyPrincipal:
        """Return the user that an outer authentication middleware found, or else the principal of the credentials."""
        found = principals.of_user(scope["user"]) if "user" in scope else None
        if found is None:
            found = principals.of_request(headers.credentials, self._admission.session_cookies)
            if found.fleeting:
                self._admission.warn_fleeting()
        return found

    async def _respond(
        self,
        found: Replay | Busy | Mismatch | InDoubt | Expired | PrincipalChanged | TooManyKeys,
        headers: AsgiHeaders,
        receive: Receive,
        send: Send,
    ) -> None:
        admission = self._admission
        match found:
            case Replay(entry):
                await replay(admission.ledger, admission.codec, entry, headers.one(b"last-event-id"), receive, send)
            case Busy(entry) if entry.outcome.chunks:
                await replay(admission.ledger, admission.codec, entry, headers.one(b"last-event-id"), receive, send)
            case _:
                await send_response(send, refusal_of(found))

    def _exchange(
        self,
        scope: Any,
        headers: AsgiHeaders,
        request: KeyedRequest,
        claim: Claim,
        body: AsgiBody,
        receive: Receive,
        send: Send,
    ) -> AsgiExchange:
        settlement = Settlement(self._admission, request, claim)
        exchange = AsgiExchange(self._admission, request, settlement, body, receive, send)
        scope[SCOPE_KEY] = settlement.operation
        extensions = scope.get("extensions")
        if extensions:
            scope["extensions"] = {name: value for name, value in extensions.items() if name not in _UNRECORDABLE}
        place = place_of(headers.one(b"last-event-id"))
        if place is not None and place[0] != claim.version:
            exchange.preface = interrupted(INTERRUPTED)
        return exchange

    async def _run(self, exchange: AsgiExchange, scope: Any, receive: Receive) -> None:
        """Run the application in a separate task, which continues if the client disconnects."""
        loop = asyncio.get_running_loop()
        task = loop.create_task(exchange.run(self.app, scope))
        # Await a future, not the task: cancelling a waiter would cancel the task it awaits.
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
            if not exchange.began:  # the task, but not this call, was cancelled before its first step
                await exchange.never_ran()
            task.result()
        else:
            task.add_done_callback(_report)

    async def _cancelled(self, exchange: AsgiExchange, task: asyncio.Task[None], receive: Receive) -> None:
        """Handle the cancellation of the server's call.

        If the client disconnected after its whole body was read, the handler continues. In all other cases (an
        incomplete body, a shutdown, a timeout) the handler is cancelled.
        """
        exchange.gone = True
        task.add_done_callback(_report)
        if exchange.is_read and await _has_disconnected(receive):
            return
        task.cancel()
        await asyncio.wait({task})

    def _done(self, task: asyncio.Task[None]) -> None:
        caller = self._tasks.pop(task)
        if not caller.done():
            caller.set_result(None)

    # Shutdown.

    def _closing(self, send: Send) -> Send:
        async def closing(message: Message) -> None:
            if message["type"].startswith("lifespan.shutdown"):
                await self._finish()
            await send(message)

        return closing

    async def _finish(self) -> None:
        """Wait for requests whose client disconnected, cancel those that do not end, then close the ledger."""
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=GRACE_SECONDS)
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(set(self._tasks))
        await asyncio.to_thread(self._admission.close)


def _push_back(message: Message, receive: Receive) -> Receive:
    """Return a `receive` that yields this message first, then the server's messages."""
    first = [message]

    async def receive_again() -> Message:
        return first.pop() if first else await receive()

    return receive_again


async def _refuse(send: Send, refusal: Response | None) -> None:
    """Send the refusal of a request body, unless its client disconnected."""
    if refusal is not None:
        await send_response(send, refusal)


async def _named_principal(name: Any) -> KeyPrincipal:
    return principals.named(await name if hasattr(name, "__await__") else name)


async def _has_disconnected(receive: Receive) -> bool:
    probe = asyncio.ensure_future(client_gone(receive))
    while not probe.done():
        # Some servers cancel repeatedly until the call ends. It ends as soon as the probe is done.
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait({probe})
    return probe.result()


def _report(task: asyncio.Task[None]) -> None:
    """Log the exception of a handler whose client disconnected; otherwise it would be lost."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log_event(logger.error, "handler_failed_after_disconnect", error)
