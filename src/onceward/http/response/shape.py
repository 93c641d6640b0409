"""The shape of the responses to one keyed request: the format of refusals, and the echo of its key.

The middlewares wrap the server's `send` or `start_response` once, so that every response passes through here: of the
handler, replayed, or a refusal. Without `problem=` and `echo=` nothing is wrapped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from onceward.http.asgi_types import Message, Send
from onceward.http.keyed.framework_response import from_framework
from onceward.http.keyed.rules import Rule
from onceward.http.problem import Refusal, Response
from onceward.http.problem_formats import ProblemFormat

_ECHO = b"idempotency-key"
_RETRY_AFTER = b"retry-after"


class Shape:
    """The format of refusals and the echoed key of one request. An empty `echo` adds no header."""

    __slots__ = ("_echo", "_format")

    def __init__(self, problem_format: ProblemFormat | None, echo: str) -> None:
        self._format = problem_format
        self._echo = echo.encode("latin-1")

    def headers(self, lines: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        """Return the headers with the echoed key, unless the application sends one itself."""
        found = list(lines)
        if self._echo and not any(name.lower() == _ECHO for name, _ in found):
            found.append((_ECHO, self._echo))
        return found

    def response(self, response: Response) -> Response:
        """Return a refusal in the format of its route; any other response unchanged."""
        if self._format is None or response.refusal is None:
            return response
        return formatted(response.refusal, self._format)


def formatted(refusal: Refusal, problem_format: ProblemFormat) -> Response:
    """Return a refusal in this format. A JSON value is sent with the status and the Retry-After of the refusal."""
    made = problem_format(refusal)
    if isinstance(made, Response):
        return made
    if isinstance(made, dict | list):
        made = (refusal.status, refusal.headers, made)
    found = from_framework(made)
    if refusal.retry_after is None or any(name == _RETRY_AFTER for name, _ in found.headers):
        return found
    return Response(found.status, (*found.headers, (_RETRY_AFTER, str(refusal.retry_after).encode())), found.body)


class ShapedSend:
    """The `send` of an ASGI server, with a shape."""

    __slots__ = ("_send", "shape")

    def __init__(self, send: Send, shape: Shape) -> None:
        self._send = send
        self.shape = shape

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": self.shape.headers(message.get("headers", ()))}
        await self._send(message)


class ShapedStart:
    """The `start_response` of a WSGI server, with a shape."""

    __slots__ = ("_start_response", "shape")

    def __init__(self, start_response: Callable[..., Any], shape: Shape) -> None:
        self._start_response = start_response
        self.shape = shape

    def __call__(self, status: str, headers: Iterable[tuple[str, str]], *rest: Any) -> Any:
        lines = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
        found = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in self.shape.headers(lines)]
        return self._start_response(status, found, *rest)


def shaped_send(send: Send, rule: Rule, echo: str = "") -> Send:
    """Return the `send` for the responses of a route. `echo` is the key to return if the route echoes it."""
    if rule.problem is None and not (rule.echo and echo):
        return send
    return ShapedSend(send, Shape(rule.problem_format, echo if rule.echo else ""))


def shaped_start(start_response: Callable[..., Any], rule: Rule, echo: str = "") -> Callable[..., Any]:
    """Return the `start_response` for the responses of a route; see `shaped_send`."""
    if rule.problem is None and not (rule.echo and echo):
        return start_response
    return ShapedStart(start_response, Shape(rule.problem_format, echo if rule.echo else ""))


def echo_of(line: str, key: str) -> str:
    """Return the key as the client sent it, with its quotes; the key itself if it was not in this header line."""
    return line if line.strip().strip('"') == key else key


def shaped(edge: object, response: Response) -> Response:
    """Return the response as it is to be sent through this `send` or `start_response`."""
    return edge.shape.response(response) if isinstance(edge, ShapedSend | ShapedStart) else response
