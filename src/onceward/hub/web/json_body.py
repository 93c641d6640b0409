"""Strict JSON bodies: refuse everything that two parsers could read differently.

Refused are duplicate keys, NaN and infinity (also numbers too large for a double), lone surrogates, NUL in
text, nesting over 64 levels, encodings other than UTF-8, and an empty body. A router uses it with
`APIRouter(route_class=StrictRoute)`. `app.state.max_body_bytes` limits the size of a body, and
`app.state.max_body_bytes_at` overrides this limit for single paths.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Container, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from fastapi.exceptions import RequestValidationError
from fastapi.params import Form
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from onceward.core.canonical import Json
from onceward.errors import InvalidInput, TooLarge
from onceward.http.request.headers import media_type_of

NESTING_MAX = 64
CHANGING = frozenset({"POST", "PUT", "PATCH", "DELETE"})
# Python's own default limit: parsing time grows with the square of the digits.
INTEGER_DIGITS_MAX = 4300
# Ten times the largest JSON body that the hub's routes need.
BODY_BYTES_MAX = 1024 * 1024

# Only text that matches can contain a number that is too large, and needs the slower decoder.
_LARGE_NUMBER = re.compile(r"[eE]\+?[0-9]{3}|(?<![0-9])[0-9]{300}")
# Lone surrogates and NUL can only come from escapes: unescaped, they are not valid UTF-8 or JSON.
_SUSPECT_ESCAPE = re.compile(rb"\\u(?:[dD][89a-fA-F]|0000)")
_ESCAPE = re.compile(rb"\\.", re.DOTALL)
_STRING = re.compile(rb'"[^"]*"')
_NOT_STRUCTURE = bytes(set(range(256)) - set(b'"[]{}'))
_ONE_KIND = bytes.maketrans(b"{}", b"[]")
_SURROGATE = re.compile("[\ud800-\udfff]")


def parse(data: bytes) -> Json:
    """Parse JSON strictly, or raise `InvalidInput` with the reason."""
    if not data or data.isspace():
        raise InvalidInput("the body is empty, a JSON value is required")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        raise InvalidInput("the body is not valid UTF-8") from None
    if text.startswith("\ufeff"):
        raise InvalidInput("the body starts with a byte order mark, which JSON does not allow")
    decoder = _careful if _LARGE_NUMBER.search(text) else _quick
    try:
        value: Json = decoder.decode(text)
    except json.JSONDecodeError as error:
        message = f"the body is not valid JSON: {error.msg}, at line {error.lineno} column {error.colno}"
        raise InvalidInput(message) from None
    except RecursionError:
        raise _too_deep() from None
    if data.count(b"[") + data.count(b"{") > NESTING_MAX and _is_deep(data):
        raise _too_deep()
    if _SUSPECT_ESCAPE.search(data):
        _check_texts(value)
    return value


def _object(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    found = dict(pairs)
    if len(found) != len(pairs):
        counted = Counter(name for name, _ in pairs)
        twice = next(name for name, count in counted.items() if count > 1)
        raise InvalidInput(f"the body has the key {_shown(twice)} twice in one object")
    return found


def _constant(name: str) -> Json:
    raise InvalidInput(f"the body contains {name}, which is not a JSON number")


def _float(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise InvalidInput("the body contains a number that is too large for a double")
    return value


def _int(digits: str) -> int:
    if len(digits.lstrip("-")) > INTEGER_DIGITS_MAX:
        raise InvalidInput(f"the body contains an integer of more than {INTEGER_DIGITS_MAX} digits")
    return int(digits)


_quick = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_constant)
_careful = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_constant, parse_float=_float, parse_int=_int)


def _is_deep(data: bytes) -> bool:
    """Return whether valid JSON is nested too deeply. Each pass removes the innermost brackets, which is one level."""
    marks = _ESCAPE.sub(b"", data).translate(_ONE_KIND, _NOT_STRUCTURE)
    brackets = _STRING.sub(b"", marks)
    for _ in range(NESTING_MAX):
        brackets = brackets.replace(b"[]", b"")
    return bool(brackets)


def _too_deep() -> InvalidInput:
    return InvalidInput(f"the body is nested deeper than {NESTING_MAX} levels")


def _check_texts(value: Json) -> None:
    stack: list[Json] = [value]
    while stack:
        match stack.pop():
            case str() as text:
                if "\x00" in text:
                    raise InvalidInput("the body contains a NUL character, which is not allowed")
                if _SURROGATE.search(text):
                    raise InvalidInput("the body contains a lone surrogate, which is not valid text")
            case list() as items:
                stack += items
            case dict() as fields:
                stack += fields
                stack += fields.values()


def _shown(key: str) -> str:
    return json.dumps(key if len(key) <= 64 else key[:64] + "…")  # noqa: PLR2004  # enough to find it


# The request.


class StrictBody(BaseModel):
    """Request body whose values are not converted and whose unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", strict=True)


class StrictRequest(Request):
    """Request whose body size is limited while it arrives, and whose JSON is parsed by `parse`."""

    async def body(self) -> bytes:
        if not hasattr(self, "_body"):
            bytes_max = _bytes_max(self)
            announced = self.headers.get("content-length", "")
            if announced.isdecimal() and int(announced) > bytes_max:
                raise _too_large(bytes_max)
            pieces, size = [], 0
            try:
                async for piece in self.stream():
                    size += len(piece)
                    if size > bytes_max:
                        raise _too_large(bytes_max)
                    pieces.append(piece)
            except ClientDisconnect:
                # Not an error of the hub, and no client is left to read the response.
                raise InvalidInput("the client disconnected before the request was complete") from None
            self._body = b"".join(pieces)
        return self._body

    async def json(self) -> Any:
        if not hasattr(self, "_json"):
            self._json = parse(await self.body())
        return self._json


def _bytes_max(request: Request) -> int:
    state, path = request.app.state, request.scope["path"]
    own: dict[str, int] = getattr(state, "max_body_bytes_at", {})
    return own[path] if path in own else getattr(state, "max_body_bytes", BODY_BYTES_MAX)


async def sent_bytes(request: Request) -> bytes:
    """Return the raw body, under the same size limit, for a handler that parses it itself."""
    return await StrictRequest(request.scope, request.receive).body()


Handler: TypeAlias = Callable[[Request], Coroutine[Any, Any, Response]]


class StrictRoute(APIRoute):
    """Route whose JSON body is checked before FastAPI parses it. Forms and routes without a body are not affected.

    An `async` endpoint that takes nothing but path parameters, a body and the request is called directly. FastAPI's
    dependencies, which it does not use, would take a quarter of the time of a small request.

    Changing routes that run in a thread first acquire `app.state.writers`, if it is set.
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        super().__init__(path, endpoint, **options)
        parameters = _DirectParameters.of(endpoint, self.param_convertors) if not self.dependencies else None
        if parameters is not None:
            self.app = _direct_app(endpoint, parameters)

    def get_route_handler(self) -> Handler:
        handle = super().get_route_handler()
        if (self.methods or set()) & CHANGING and not inspect.iscoroutinefunction(self.endpoint):
            handle = _limit_writers(handle)
        body = self.body_field
        if body is None or isinstance(body.field_info, Form):
            return handle
        required = body.field_info.is_required()

        async def strict(request: Request) -> Response:
            request = StrictRequest(request.scope, request.receive)
            # Read here: FastAPI would report every failure with the same message.
            sent = await request.body()
            if sent:
                check_media_type(request)
            if sent or required:
                await request.json()
            return await handle(request)

        return strict


@dataclass(frozen=True, slots=True)
class _DirectParameters:
    """The parameters of an endpoint that is called directly: path parameters, the body (or None) and the request."""

    in_path: list[tuple[str, TypeAdapter[Any]]] = field(default_factory=list)
    body: list[tuple[str, type[BaseModel]]] = field(default_factory=list)
    request: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, endpoint: Callable[..., Any], in_path: Container[str]) -> _DirectParameters | None:
        """Return the parameters, or None if the endpoint has others."""
        signature = inspect.signature(endpoint, eval_str=True)
        returned = signature.return_annotation
        returns_response = isinstance(returned, type) and issubclass(returned, Response)
        if not inspect.iscoroutinefunction(endpoint) or not returns_response:
            return None
        found = cls()
        for name, parameter in signature.parameters.items():
            kind = parameter.annotation
            if parameter.default is not parameter.empty:
                return None
            if name in in_path:
                found.in_path.append((name, TypeAdapter(kind)))
            elif kind is Request:
                found.request.append(name)
            elif isinstance(kind, type) and issubclass(kind, StrictBody) and not found.body:
                found.body.append((name, kind))
            else:
                return None
        return found

    def values(self, request: Request, sent: Json) -> dict[str, Any]:
        """Validate the parameters as FastAPI does; raise `RequestValidationError` with all of their errors."""
        values: dict[str, Any] = dict.fromkeys(self.request, request)
        problems: list[Any] = []
        for name, adapter in self.in_path:
            try:
                values[name] = adapter.validate_python(request.path_params[name])
            except ValidationError as error:
                problems += _located(error, "path", name)
        for name, model in self.body:
            try:
                values[name] = model.model_validate(sent)
            except ValidationError as error:
                problems += _located(error, "body")
        if problems:
            raise RequestValidationError(problems, body=sent)
        return values


def _located(error: ValidationError, *where: str) -> list[Any]:
    return [{**one, "loc": (*where, *one["loc"])} for one in error.errors(include_url=False)]


def _direct_app(endpoint: Callable[..., Any], parameters: _DirectParameters) -> ASGIApp:
    async def direct(scope: Scope, receive: Receive, send: Send) -> None:
        request = StrictRequest(scope, receive, send)
        sent: Json = None
        if parameters.body:
            if await request.body():
                check_media_type(request)
            sent = await request.json()
        response: Response = await endpoint(**parameters.values(request, sent))
        await response(scope, receive, send)

    return direct


def _limit_writers(handle: Handler) -> Handler:
    """Make writers wait here, after their body has arrived, so that they do not occupy the threads of readers."""

    async def limited(request: Request) -> Response:
        async with getattr(request.app.state, "writers", None) or contextlib.nullcontext():
            return await handle(request)

    return limited


def check_media_type(request: Request, besides: str = "") -> None:
    """Refuse with 415 a compressed body, and one that is neither JSON nor of the media type `besides`."""
    media_type = media_type_of(request.headers.get("content-type", ""))
    is_json = media_type == "application/json" or (
        media_type.startswith("application/") and media_type.endswith("+json")
    )
    if not is_json and not (besides and media_type == besides):
        other = f", or {besides}" if besides else ""
        raise HTTPException(415, f"The body must be JSON. Send Content-Type: application/json{other}.")
    if request.headers.get("content-encoding", "identity").strip().lower() != "identity":
        raise HTTPException(415, "The body must not be compressed.")


def _too_large(bytes_max: int) -> TooLarge:
    return TooLarge(f"the body is limited to {bytes_max} bytes")
