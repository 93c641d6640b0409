"""Problem answers (RFC 9457) for everything that goes wrong in the hub, and the place where they are sent.

`install(app)` teaches a FastAPI application to answer so; `Guard` is the same for what is not FastAPI. Whatever else
happens, a client sees a status, a code and a sentence, and never a trace.
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
from onceward.http import problem
from onceward.http.problem import Answer
from onceward.http.replay import answer
from onceward.http.routes import flat
from onceward.http.wire import App, Message, Receive, Send
from onceward.hub.document import describe
from onceward.store.failure_log import report

# A list of ten thousand wrong items is wrong in the same way; the first few tell how.
ERRORS_MAX = 20
_CHARACTERS_MAX = 300
# The close code of a WebSocket whose handler failed (RFC 6455, 7.4.1).
CLOSED_BY_FAILURE = 1011
_REFUSED = 1008
# After these a WebSocket takes nothing more.
_ENDED = ("websocket.close", "websocket.http.response")

_INTERNAL = "The hub failed to answer this request. The log says why, under the X-Request-ID of this answer."
_UNAVAILABLE = (
    "The database, or what keeps the bytes of files, does not answer or has no room. Retry in a moment, with the same"
    " idempotency key if you sent one."
)
_MISCONFIGURED = (
    "The hub's database, its ledger, or what keeps the bytes of files is misconfigured. A retry does not help; the hub's"
    " log has the cause."
)
_DETAILS = {404: "There is nothing at this address", 405: "This address does not have this method"}
# Where FastAPI's names for the parts of a request begin; what follows is the field.
_PLACES = frozenset({"body", "query", "path", "header", "cookie"})
_STORES = (errors.StoreUnavailable, errors.StoreClosed, errors.TransactionConflict)
logger = logging.getLogger("onceward.hub")


def answer_to(error: Exception) -> Answer:
    """The answer that an exception stands for; 500 for what nobody expected."""
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


def invalid(fields: tuple[tuple[str, str], ...]) -> Answer:
    """400, with the first wrong field in the sentence and all of them in `errors`."""
    field, message = fields[0]
    return problem.problem(400, f"The request is not valid: {field}: {message}", errors=fields)


def store_failed(error: errors.StoreUnavailable) -> Answer:
    """The answer to a request that a store kept from being answered; the log gets the cause."""
    whole = answer_to(error)
    _tell(error, whole)
    return whole


def unavailable() -> Answer:
    return problem.problem(503, _UNAVAILABLE, retry_after=problem.STORE_RETRY_SECONDS)


def _fields(found: Iterable[Any]) -> tuple[tuple[str, str], ...]:
    """What pydantic says, without the value that was sent."""
    fields = []
    for one in list(found)[:ERRORS_MAX]:
        place = [str(part) for part in one["loc"]]
        inner = place[1:] if place and place[0] in _PLACES else place
        field = ".".join(inner or place) or "request"
        fields.append((_cut(field), _cut(str(one["msg"]).removeprefix("Value error, "))))
    return tuple(fields) or (("request", "it cannot be read"),)


def _cut(text: str) -> str:
    """Messages may quote what was sent, which may be long."""
    return text if len(text) <= _CHARACTERS_MAX else text[:_CHARACTERS_MAX] + "…"


def _of_http(error: HTTPException) -> Answer:
    headers = tuple(
        (name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in (error.headers or {}).items()
    )
    detail = _cut(str(error.detail))
    if detail == problem.phrase(error.status_code):
        # The framework's own words, which say no more than the title does.
        detail = _DETAILS.get(error.status_code, detail)
    return problem.problem(error.status_code, detail, headers=headers)


# FastAPI.


def install(app: FastAPI) -> None:
    """Let the application answer with problems, and its document say so.

    Call it before `document_idempotency`: a 422 that stays in the document is then the middleware's.
    """
    for kind in (RequestValidationError, errors.OncewardError, HTTPException):
        app.add_exception_handler(kind, _handle)
    # Around the handlers above, and inside of what Starlette does with everything else: answer, and raise it again.
    app.add_middleware(Guard)
    plain = app.openapi
    source: dict[str, Any] | None = None
    described: dict[str, Any] = {}

    def openapi() -> dict[str, Any]:
        # FastAPI hands out the same document until its routes change.
        nonlocal source, described
        document = plain()
        if document is not source:
            source, described = document, describe(document)
        return described

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's own way to extend the document


async def _handle(request: Request, error: Exception) -> Response:
    whole = answer_to(error)
    if whole.status == 405:  # noqa: PLR2004  # the framework names the methods of one route, and a path may have several
        headers = {**dict(whole.headers), b"allow": ", ".join(_methods(request)).encode()}
        whole = dataclasses.replace(whole, headers=tuple(headers.items()))
    _tell(error, whole)
    response = Response(whole.body, whole.status)
    response.raw_headers = list(whole.headers)
    return response


def _methods(request: Request) -> list[str]:
    """Every method that this address has."""
    look = {**request.scope, "path_params": {}}
    found: set[str] = set()
    for route in flat(request.app.routes):
        if route.matches(look)[0].value:
            found |= set(getattr(route, "methods", None) or ())
    return sorted(found | ({"HEAD"} if "GET" in found else set()))


# Everything else.


class Guard:
    """The application behind it never raises before it has begun to answer: the client gets 500, the log the trace."""

    def __init__(self, app: App) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] not in {"http", "websocket"}:
            await self.app(scope, receive, send)
            return
        begun = ""

        async def watched(message: Message) -> None:
            nonlocal begun
            begun = message["type"]
            await send(message)

        try:
            await self.app(scope, receive, watched)
        except Exception as error:
            if not begun:
                whole = answer_to(error)
                _tell(error, whole)
                await refuse(scope, receive, send, whole)
            elif scope["type"] == "websocket" and not begun.startswith(_ENDED):
                _tell(error, answer_to(error))
                await send({"type": "websocket.close", "code": CLOSED_BY_FAILURE, "reason": ""})
            else:
                # Half an answer cannot be taken back; the server cuts the connection, and says so in the log.
                raise


async def refuse(scope: Any, receive: Receive, send: Send, whole: Answer) -> None:
    """Send a whole answer to a request, or to a WebSocket that has not been accepted."""
    if scope["type"] == "http":
        await answer(send, whole)
    elif "websocket.http.response" in (scope.get("extensions") or {}):
        await receive()
        headers = list(whole.headers)
        await send({"type": "websocket.http.response.start", "status": whole.status, "headers": headers})
        await send({"type": "websocket.http.response.body", "body": whole.body, "more_body": False})
    else:
        # The server turns it into 403.
        await receive()
        await send({"type": "websocket.close", "code": _REFUSED, "reason": ""})


def _tell(error: Exception, whole: Answer) -> None:
    """A store's failure by its cause, a bug with its trace; what a client did wrong is in the answer alone."""
    if isinstance(error, _STORES):
        report(error)
    elif whole.status == 500:  # noqa: PLR2004  # the one that is a bug
        logger.error("a request failed", exc_info=error)
