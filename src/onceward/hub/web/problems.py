"""Problem responses (RFC 9457) for every error of the hub.

`install(app)` adds them to a FastAPI application; `ProblemMiddleware` adds them to any other ASGI application.
A client always gets a status, a code and a sentence, never a stack trace.
"""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Iterable
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from onceward import errors
from onceward.core.log_event import log_event
from onceward.http import problem
from onceward.http.asgi_types import App, Message, Receive, Send
from onceward.http.middleware.handler_lookup import flat
from onceward.http.response.replay import send_response
from onceward.store.failure_log import report

# Ten thousand wrong items are usually wrong in the same way, so the first few are enough.
ERRORS_MAX = 20
_CHARACTERS_MAX = 300
# The close code of a WebSocket whose handler failed (RFC 6455, 7.4.1).
CLOSED_BY_FAILURE = 1011
_REFUSED = 1008
# After these messages, nothing more can be sent on a WebSocket.
_ENDED = ("websocket.close", "websocket.http.response")

_INTERNAL = "The hub failed to process this request. Its log has the cause, under the X-Request-ID of this response."
_UNAVAILABLE = (
    "The database or the blob store does not respond or is full. Retry in a moment, with the same idempotency key if you"
    " sent one."
)
_OVERLOADED = (
    "All connections to the database are in use. Retry in a moment, with the same idempotency key if you sent one."
)
_MISCONFIGURED = (
    "The hub's database, its ledger or its blob store is misconfigured. A retry does not help. The hub's log has the"
    " cause."
)
_DETAILS = {404: "This path does not exist.", 405: "This path does not support this method."}
# The first part of FastAPI's error locations; the rest is the field.
_LOCATIONS = frozenset({"body", "query", "path", "header", "cookie"})
_STORES = (errors.StoreUnavailable, errors.StoreClosed, errors.TransactionConflict)
logger = logging.getLogger("onceward.hub")


def response_to(error: Exception) -> problem.Response:
    """Map an exception to its problem response; 500 for unexpected ones."""
    match error:
        case RequestValidationError():
            return invalid(_fields(error.errors()))
        case errors.InvalidInput():
            fields = [(_cut(name), _cut(message)) for name, message in error.fields[:ERRORS_MAX]]
            fields = fields or [("request", _cut(str(error)))]
            return problem.problem(400, _cut(str(error)), errors=tuple(fields))
        case errors.InvalidKey() | errors.WriteRefused():
            return problem.problem(400, _cut(str(error)), errors=(("request", _cut(str(error))),))
        case errors.NotFound():
            return problem.problem(404, _cut(str(error)))
        case errors.Expired():
            return problem.problem(404, _cut(str(error)), error.code)
        case errors.Conflict():
            return problem.problem(409, _cut(str(error)))
        case errors.TooLarge():
            return problem.problem(413, _cut(str(error)))
        case errors.StoreMisconfigured():
            return problem.problem(500, _MISCONFIGURED)
        case errors.StoreOverloaded():
            return problem.problem(503, _OVERLOADED, retry_after=problem.STORE_RETRY_SECONDS)
        case errors.TooManyRequests():
            return problem.problem(429, _cut(str(error)), retry_after=max(1, math.ceil(error.retry_after_seconds)))
        case errors.StoreUnavailable() | errors.StoreClosed() | errors.TransactionConflict():
            return unavailable()
        case errors.KeyReused():
            return problem.mismatch()
        case errors.Busy():
            return problem.busy()
        case errors.InDoubt():
            return problem.in_doubt()
        case errors.OutcomeNotKept():
            return problem.not_kept()
        case HTTPException():
            return _of_http(error)
        case _:
            return problem.problem(500, _INTERNAL)


def invalid(fields: tuple[tuple[str, str], ...]) -> problem.Response:
    """Build a 400 problem with the first invalid field in `detail` and all of them in `errors`."""
    field, message = fields[0]
    return problem.problem(400, f"The request is not valid: {field}: {message}", errors=fields)


def store_failed(error: errors.StoreUnavailable) -> problem.Response:
    """Build the response to a store failure, and log the cause."""
    response = response_to(error)
    _log_failure(error, response)
    return response


def unavailable() -> problem.Response:
    return problem.problem(503, _UNAVAILABLE, retry_after=problem.STORE_RETRY_SECONDS)


def _fields(found: Iterable[Any]) -> tuple[tuple[str, str], ...]:
    """Convert pydantic's errors to fields and messages, without the values sent."""
    fields = []
    for one in list(found)[:ERRORS_MAX]:
        location = [str(part) for part in one["loc"]]
        inner = location[1:] if location and location[0] in _LOCATIONS else location
        field = ".".join(inner or location) or "request"
        fields.append((_cut(field), _cut(str(one["msg"]).removeprefix("Value error, "))))
    return tuple(fields) or (("request", "is not valid"),)


def _cut(text: str) -> str:
    """Truncate a message: it may quote a long value from the request."""
    return text if len(text) <= _CHARACTERS_MAX else text[:_CHARACTERS_MAX] + "…"


def _of_http(error: HTTPException) -> problem.Response:
    headers = tuple(
        (name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in (error.headers or {}).items()
    )
    detail = _cut(str(error.detail))
    if detail == problem.phrase(error.status_code):
        # The framework's default text only repeats the title.
        detail = _DETAILS.get(error.status_code, detail)
    return problem.problem(error.status_code, detail, headers=headers)


# FastAPI.


def install(app: FastAPI) -> None:
    """Make the application respond with problems. `hub/openapi.py` documents them."""
    for kind in (RequestValidationError, errors.OncewardError, HTTPException):
        app.add_exception_handler(kind, _handle)
    # Outside the handlers above, and inside Starlette's own error handling, which responds and then raises again.
    app.add_middleware(ProblemMiddleware)


async def _handle(request: Request, error: Exception) -> Response:
    found = response_to(error)
    if found.status == 405:  # noqa: PLR2004  # Starlette lists the methods of one route only, but a path may have several routes
        headers = {**dict(found.headers), b"allow": ", ".join(_methods(request)).encode()}
        found = dataclasses.replace(found, headers=tuple(headers.items()))
    _log_failure(error, found)
    response = Response(found.body, found.status)
    response.raw_headers = list(found.headers)
    return response


def _methods(request: Request) -> list[str]:
    """Return every method that the request's path supports."""
    scope = {**request.scope, "path_params": {}}
    found: set[str] = set()
    for route in flat(request.app.routes):
        if route.matches(scope)[0].value:
            found |= set(getattr(route, "methods", None) or ())
    return sorted(found | ({"HEAD"} if "GET" in found else set()))


# Everything else.


class ProblemMiddleware:
    """Middleware that turns an exception raised before the response started into a 500, and logs the traceback."""

    def __init__(self, app: App) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] not in {"http", "websocket"}:
            await self.app(scope, receive, send)
            return
        started = ""

        async def watched_send(message: Message) -> None:
            nonlocal started
            started = message["type"]
            await send(message)

        try:
            await self.app(scope, receive, watched_send)
        except Exception as error:
            if not started:
                response = response_to(error)
                _log_failure(error, response)
                await refuse(scope, receive, send, response)
            elif scope["type"] == "websocket" and not started.startswith(_ENDED):
                _log_failure(error, response_to(error))
                await send({"type": "websocket.close", "code": CLOSED_BY_FAILURE, "reason": ""})
            else:
                # The response has started and cannot be replaced: the server closes the connection and logs the error.
                raise


async def refuse(scope: Any, receive: Receive, send: Send, response: problem.Response) -> None:
    """Send a whole response to a request, or to a WebSocket that was not accepted yet."""
    if scope["type"] == "http":
        await send_response(send, response)
    elif "websocket.http.response" in (scope.get("extensions") or {}):
        await receive()
        headers = list(response.headers)
        await send({"type": "websocket.http.response.start", "status": response.status, "headers": headers})
        await send({"type": "websocket.http.response.body", "body": response.body, "more_body": False})
    else:
        # The server turns this close into a 403.
        await receive()
        await send({"type": "websocket.close", "code": _REFUSED, "reason": ""})


def _log_failure(error: Exception, response: problem.Response) -> None:
    """Log the cause of a store failure, and the traceback of a bug. Client errors are not logged here."""
    if isinstance(error, _STORES):
        report(error)
    elif response.status == 500:  # noqa: PLR2004  # any other status is an expected error
        log_event(logger.error, "request_failed", error)
