"""A WSGI server for one request, in this process, which checks every rule of the standard."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias
from wsgiref.util import setup_testing_defaults
from wsgiref.validate import validator

Environ: TypeAlias = dict[str, Any]
Start: TypeAlias = Callable[..., Any]
App: TypeAlias = Callable[[Environ, Start], Iterable[bytes]]

TEXT = [("Content-Type", "text/plain")]
EVENTS = [("Content-Type", "text/event-stream")]


@dataclass(slots=True)
class ReceivedResponse:
    """A response as received: complete, or cut with the connection."""

    line: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    pieces: list[bytes] = field(default_factory=list)

    @property
    def status(self) -> int:
        return int(self.line[:3])

    @property
    def body(self) -> bytes:
        return b"".join(self.pieces)

    @property
    def replayed(self) -> bool:
        return self.headers.get("idempotent-replayed") == "true"


class OpenRequest:
    """A running request, whose response is taken piece by piece."""

    def __init__(
        self, app: App, path: str = "/", body: bytes = b"", key: str | None = "k", environ: Environ | None = None
    ) -> None:
        self.got = ReceivedResponse()
        self.environ: Environ = {
            "REQUEST_METHOD": "POST",
            "SCRIPT_NAME": "",
            "PATH_INFO": path,
            "QUERY_STRING": "",
            "CONTENT_LENGTH": str(len(body)),
            "wsgi.input": io.BytesIO(body),
            **({} if key is None else {"HTTP_IDEMPOTENCY_KEY": key}),
            **(environ or {}),
        }
        setup_testing_defaults(self.environ)
        self._response: Any = validator(app)(self.environ, self._start)
        self._pieces: Iterator[bytes] = iter(self._response)

    def _start(self, line: str, headers: list[tuple[str, str]], exc_info: object = None) -> Callable[[bytes], object]:
        assert not self.got.line or exc_info is not None, "a response starts once"
        self.got.line = line
        self.got.headers = {name.lower(): value for name, value in headers}
        return self.got.pieces.append

    def take(self) -> bytes:
        """Return the next piece."""
        piece = next(self._pieces)
        self.got.pieces.append(piece)
        return piece

    def take_all(self) -> ReceivedResponse:
        """Return all remaining pieces."""
        try:
            self.got.pieces.extend(self._pieces)
        finally:
            self.close()
        return self.got

    def close(self) -> None:
        """Close the response: the server has finished, or the client has disconnected."""
        self._response.close()


def send_request(
    app: App, path: str = "/", body: bytes = b"", key: str | None = "k", environ: Environ | None = None
) -> ReceivedResponse:
    """Return the whole response; exceptions of the application are raised."""
    return OpenRequest(app, path, body, key, environ).take_all()


class CountingApp:
    """An application that counts its runs, and its closed responses."""

    def __init__(self, handler: Callable[[int, Environ, Start], Iterable[bytes]]) -> None:
        self.runs = 0
        self.closed = 0
        self._handler = handler

    def __call__(self, environ: Environ, start_response: Start) -> Iterable[bytes]:
        self.runs += 1
        pieces = self._handler(self.runs, environ, start_response)
        if isinstance(pieces, list | tuple):
            self.closed += 1  # such have no end of their own
            return pieces
        return _Closing(self, pieces)


class _Closing:
    """A response that informs its application when it is closed."""

    def __init__(self, shop: CountingApp, pieces: Iterable[bytes]) -> None:
        self._shop = shop
        self._pieces = pieces
        self.streaming = getattr(pieces, "streaming", True)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._pieces)

    def close(self) -> None:
        self._shop.closed += 1
        close = getattr(self._pieces, "close", None)
        if close is not None:
            close()


class DjangoLikeBody:
    """A complete response like Django's, although it is not a list."""

    streaming = False

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = pieces

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._pieces)


BODIES: dict[str, Callable[[list[bytes]], Iterable[bytes]]] = {
    "list": list,
    "tuple": tuple,
    "django": DjangoLikeBody,
    "stream": lambda pieces: (piece for piece in pieces),
}


def app_sending(
    pieces: list[bytes], headers: list[tuple[str, str]] = TEXT, kind: str = "list", status: str = "200 OK"
) -> CountingApp:
    def handler(_: int, __: Environ, start_response: Start) -> Iterable[bytes]:
        start_response(status, list(headers))
        return BODIES[kind](pieces)

    return CountingApp(handler)


def length(size: int) -> list[tuple[str, str]]:
    return [*TEXT, ("Content-Length", str(size))]
