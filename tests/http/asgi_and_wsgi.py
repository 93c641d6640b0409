"""One handler behind either middleware, in this process: the same request, the same response, ASGI or WSGI."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.http.asgi_server import read, run, send_request
from tests.http.wsgi_server import OpenRequest

from onceward.http import IdempotencyMiddleware, WSGIIdempotencyMiddleware
from onceward.http.asgi_types import Receive, Send
from onceward.ledger import Ledger
from onceward.store import Store
from onceward.store.memory import MemoryStore

SIDES = ("asgi", "wsgi")
Reply = tuple[int, Mapping[str, str], bytes]


@dataclass(slots=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def replayed(self) -> bool:
        return self.headers.get("idempotent-replayed") == "true"


@dataclass(slots=True)
class Effects:
    """A handler that counts, and responds with the number of its run. `replies` are for the first runs."""

    runs: list[tuple[str, bytes]] = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)

    def __call__(self, path: str, body: bytes) -> Reply:
        self.runs.append((path, body))
        if self.replies:
            return self.replies.pop(0)
        return 200, {"Content-Type": "text/plain"}, str(len(self.runs)).encode()


class GuardedApp:
    """A handler behind a middleware."""

    def __init__(
        self, side: str, handler: Callable[[str, bytes], Reply], store: Store | Ledger, **options: Any
    ) -> None:
        options = {"metrics": False, **options}
        self._asgi: IdempotencyMiddleware | None = None
        self._wsgi: WSGIIdempotencyMiddleware | None = None
        if side == "asgi":
            self._asgi = IdempotencyMiddleware(_asgi(handler), store, **options)
        else:
            self._wsgi = WSGIIdempotencyMiddleware(_wsgi(handler), store, **options)

    @property
    def ledger(self) -> Ledger:
        middleware = self._asgi or self._wsgi
        assert middleware is not None
        return middleware._admission.ledger

    def send(
        self,
        path: str = "/pay",
        body: bytes = b"",
        key: str | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        query: str = "",
        method: str = "POST",
        address: str = "10.0.0.1",
    ) -> Answer:
        lines = {**({} if key is None else {"Idempotency-Key": key}), **(headers or {})}
        if self._asgi is not None:
            sent = [(name.lower().encode(), value.encode("latin-1")) for name, value in lines.items()]
            got = run(
                send_request(
                    self._asgi, path, body, key=None, method=method, headers=sent, query_string=query.encode(),
                    client=(address, 1234),
                )
            )  # fmt: skip
            return Answer(got.status, got.headers, got.body)
        assert self._wsgi is not None
        environ = {"REQUEST_METHOD": method, "QUERY_STRING": query, "REMOTE_ADDR": address}
        for name, value in lines.items():
            variable = name.upper().replace("-", "_")
            environ[variable if variable == "CONTENT_TYPE" else f"HTTP_{variable}"] = value
        given = OpenRequest(self._wsgi, path, body, None, environ).take_all()
        return Answer(given.status, given.headers, given.body)


@contextmanager
def guarded_app(
    side: str, handler: Callable[[str, bytes], Reply], store: Store | Ledger | None = None, **options: Any
) -> Iterator[GuardedApp]:
    app = GuardedApp(side, handler, MemoryStore() if store is None else store, **options)
    try:
        yield app
    finally:
        app.ledger.close()


def _asgi(handler: Callable[[str, bytes], Reply]) -> Any:
    async def app(scope: Any, receive: Receive, send: Send) -> None:
        status, headers, body = handler(scope["path"], await read(receive))
        lines = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": status, "headers": lines})
        await send({"type": "http.response.body", "body": body})

    return app


def _wsgi(handler: Callable[[str, bytes], Reply]) -> Any:
    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        length = int(environ.get("CONTENT_LENGTH") or 0)
        status, headers, body = handler(environ["PATH_INFO"], environ["wsgi.input"].read(length))
        start_response(f"{status} Status", list(headers.items()))
        return [body]

    return app
