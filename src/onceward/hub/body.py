"""JSON bodies, read strictly: what two parsers could understand differently is refused before anyone acts on it.

Refused are duplicate keys, NaN and infinities (also numbers so large that they become one), lone surrogates, NUL in
text, nesting over 64 levels, anything but UTF-8, and an empty body. A router takes it on with
`APIRouter(route_class=StrictRoute)`; the application says in `app.state.max_body_bytes` how long a body may be, and in
`app.state.max_body_bytes_at` where it may be longer.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias

from fastapi.params import Form
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from onceward.core.canonical import Json
from onceward.core.request import media_type_of
from onceward.errors import InvalidInput, TooLarge

NESTING_MAX = 64
CHANGING = frozenset({"POST", "PUT", "PATCH", "DELETE"})
# As many as Python itself reads unless it is told otherwise: the time it takes grows with their square.
INTEGER_DIGITS_MAX = 4300
# Ten times what the largest JSON of the hub's own routes needs.
BODY_BYTES_MAX = 1024 * 1024

# Only text that has one of these can hold a number that needs a closer look.
_LARGE_NUMBER = re.compile(r"[eE]\+?[0-9]{3}|(?<![0-9])[0-9]{300}")
# Only escapes can bring these into text: raw ones are neither UTF-8 nor JSON.
_SUSPECT_ESCAPE = re.compile(rb"\\u(?:[dD][89a-fA-F]|0000)")
_ESCAPE = re.compile(rb"\\.", re.DOTALL)
_STRING = re.compile(rb'"[^"]*"')
_NOT_STRUCTURE = bytes(set(range(256)) - set(b'"[]{}'))
_ONE_KIND = bytes.maketrans(b"{}", b"[]")
_SURROGATE = re.compile("[\ud800-\udfff]")


def parse(data: bytes) -> Json:
    """The value of a JSON text, or `InvalidInput` with the reason in a sentence."""
    if not data or data.isspace():
        raise InvalidInput("The body is empty; a JSON value is needed")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        raise InvalidInput("The body is not UTF-8") from None
    if text.startswith("\ufeff"):
        raise InvalidInput("The body begins with a byte order mark, which is no part of JSON")
    decoder = _careful if _LARGE_NUMBER.search(text) else _quick
    try:
        value: Json = decoder.decode(text)
    except json.JSONDecodeError as error:
        message = f"The body is not JSON: {error.msg}, at line {error.lineno} column {error.colno}"
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
        raise InvalidInput(f"The body has the key {_shown(twice)} twice in one object")
    return found


def _constant(name: str) -> Json:
    raise InvalidInput(f"The body has {name}, which is no JSON number")


def _float(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise InvalidInput("The body has a number that is too large for a double")
    return value


def _int(digits: str) -> int:
    if len(digits.lstrip("-")) > INTEGER_DIGITS_MAX:
        raise InvalidInput(f"The body has an integer of more than {INTEGER_DIGITS_MAX} digits")
    return int(digits)


_quick = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_constant)
_careful = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_constant, parse_float=_float, parse_int=_int)


def _is_deep(data: bytes) -> bool:
    """Whether JSON, known to be valid, is nested too deeply. Taking away the innermost brackets takes away a level."""
    marks = _ESCAPE.sub(b"", data).translate(_ONE_KIND, _NOT_STRUCTURE)
    brackets = _STRING.sub(b"", marks)
    for _ in range(NESTING_MAX):
        brackets = brackets.replace(b"[]", b"")
    return bool(brackets)


def _too_deep() -> InvalidInput:
    return InvalidInput(f"The body is nested deeper than {NESTING_MAX} levels")


def _check_texts(value: Json) -> None:
    waiting: list[Json] = [value]
    while waiting:
        match waiting.pop():
            case str() as text:
                if "\x00" in text:
                    raise InvalidInput("The body has NUL in a text")
                if _SURROGATE.search(text):
                    raise InvalidInput("The body has half of a surrogate pair, which is not text")
            case list() as items:
                waiting += items
            case dict() as fields:
                waiting += fields
                waiting += fields.values()


def _shown(key: str) -> str:
    return json.dumps(key if len(key) <= 64 else key[:64] + "…")  # noqa: PLR2004  # enough to find it


# The request.


class Sent(BaseModel):
    """What is sent is taken as it is: nothing is converted, and a field that is not known is a mistake."""

    model_config = ConfigDict(extra="forbid", strict=True)


class StrictRequest(Request):
    """A request whose body is counted while it arrives and whose JSON is read by `parse`."""

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
                # Nobody is left to be answered, and nobody has made a mistake.
                raise InvalidInput("the request ended before its end") from None
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
    """The body as it came, for a handler that reads it by itself; no longer than any other may be."""
    return await StrictRequest(request.scope, request.receive).body()


Handler: TypeAlias = Callable[[Request], Coroutine[Any, Any, Response]]


class StrictRoute(APIRoute):
    """A route whose JSON body is checked before FastAPI sees it. Forms and routes without a body are left alone.

    Routes that change something and run in a thread take turns, in `app.state.writers`, if there is one.
    """

    def get_route_handler(self) -> Handler:
        handle = super().get_route_handler()
        if (self.methods or set()) & CHANGING and not inspect.iscoroutinefunction(self.endpoint):
            handle = _in_turn(handle)
        field = self.body_field
        if field is None or isinstance(field.field_info, Form):
            return handle
        required = field.field_info.is_required()

        async def strict(request: Request) -> Response:
            request = StrictRequest(request.scope, request.receive)
            # Read here and not by FastAPI, which has one answer for whatever goes wrong.
            sent = await request.body()
            if sent:
                check_media_type(request)
            if sent or required:
                await request.json()
            return await handle(request)

        return strict


def _in_turn(handle: Handler) -> Handler:
    """Writers that wait for the database wait here, once their body is there: the threads of readers stay free."""

    async def in_turn(request: Request) -> Response:
        async with getattr(request.app.state, "writers", None) or contextlib.nullcontext():
            return await handle(request)

    return in_turn


def check_media_type(request: Request, besides: str = "") -> None:
    """Refuse what is not JSON, or of the media type that may be sent besides, or is compressed, with 415."""
    media_type = media_type_of(request.headers.get("content-type", ""))
    is_json = media_type == "application/json" or (
        media_type.startswith("application/") and media_type.endswith("+json")
    )
    if not is_json and not (besides and media_type == besides):
        other = f", or {besides}" if besides else ""
        raise HTTPException(415, f"The body must be JSON: send Content-Type: application/json{other}")
    if request.headers.get("content-encoding", "identity").strip().lower() != "identity":
        raise HTTPException(415, "The body must not be compressed")


def _too_large(bytes_max: int) -> TooLarge:
    return TooLarge(f"The body is limited to {bytes_max} bytes")
