"""Status, headers and body of a framework's response object, for `bound.settle()`.

Nothing here imports a framework: responses are recognised by their attributes. A streamed response is refused, because
its body cannot be recorded in the transaction.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable
from typing import Any

from onceward.errors import InvalidOption
from onceward.http.problem import Response

# The length of a tuple (status, headers, body).
_TUPLE = 3
# Statuses of responses without a body and without a Content-Length.
_BODILESS = (204, 304)


def from_framework(response: Any) -> Response:
    """Convert a response, or a value that is sent as JSON with status 200."""
    if isinstance(response, tuple) and len(response) == _TUPLE and type(response[0]) is int:
        status, headers, body = response
        return _response(status, headers.items() if hasattr(headers, "items") else headers, *_data(body, status))
    if hasattr(response, "model_dump") or not hasattr(response, "status_code"):
        return _response(200, (), *_data(response, 200))
    if hasattr(response, "raw_headers") and hasattr(response, "body"):
        return _response(response.status_code, response.raw_headers, bytes(response.body))  # Starlette, FastAPI
    if hasattr(response, "get_data") and not getattr(response, "direct_passthrough", False):
        return _response(response.status_code, response.headers.items(), _read(response))  # Flask
    if hasattr(response, "items") and not getattr(response, "streaming", True):
        return _of_django(response)
    if hasattr(response, "to_asgi_response"):
        return _of_litestar(response)
    raise _refusal(response)


def _read(response: Any) -> bytes:
    data = response.get_data()
    if inspect.iscoroutine(data):  # Quart
        data.close()
        raise InvalidOption("bound.settle() cannot await a body; pass it a tuple (status, headers, body)")
    return bytes(data)


def _of_django(response: Any) -> Response:
    if getattr(response, "is_rendered", True) is False:
        response.render()
    cookies = [("set-cookie", cookie.OutputString()) for cookie in response.cookies.values()]
    return _response(response.status_code, [*response.items(), *cookies], response.content)


def _of_litestar(response: Any) -> Response:
    if hasattr(response, "iterator") or hasattr(response, "file_system"):
        raise _refusal(response)
    if response.status_code is None:
        raise InvalidOption("bound.settle() needs a response with a status_code; Litestar sets the default only later")
    try:
        made = response.to_asgi_response(None, None)
    except AttributeError as error:  # a template needs the request, which is None here
        raise _refusal(response) from error
    return _response(made.status_code, made.encode_headers(), made.body)


def _refusal(response: object) -> InvalidOption:
    return InvalidOption(f"bound.settle() cannot take a {type(response).__name__}: its body is not complete")


def _data(body: object, status: int) -> tuple[bytes, bytes]:
    """Return the bytes of a value and their content type."""
    if isinstance(body, str):
        return body.encode(), b"text/plain; charset=utf-8"
    if isinstance(body, bytes | bytearray | memoryview):
        return bytes(body), b"application/octet-stream"
    if body is None and status in _BODILESS:
        return b"", b""
    dump = getattr(body, "model_dump", None)
    try:
        return json.dumps(dump(mode="json") if dump else body).encode(), b"application/json"
    except (TypeError, ValueError) as error:
        raise InvalidOption(f"bound.settle() cannot take a {type(body).__name__}: it has no JSON form") from error


def _response(status: int, headers: Iterable[Any], body: bytes, kind: bytes = b"") -> Response:
    """Build a response. `kind` is the content type if the headers have none."""
    lines = [(_bytes(name).lower(), _bytes(value)) for name, value in headers]
    names = {name for name, _ in lines}
    if status not in _BODILESS:
        if kind and b"content-type" not in names:
            lines.append((b"content-type", kind))
        if b"content-length" not in names:
            lines.append((b"content-length", str(len(body)).encode()))
    return Response(status, tuple(lines), body)


def _bytes(text: object) -> bytes:
    return bytes(text) if isinstance(text, bytes) else str(text).encode("latin-1")
