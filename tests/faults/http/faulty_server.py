"""The middleware behind a real server in this process, on a store whose faults the test orders."""

from __future__ import annotations

import socket
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any, NamedTuple

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from tests.faults.http.raw_client import RawResponse, send_request
from tests.faults.http.worker import PIECES, new_token, piece, whole_body
from tests.waiting import until

from onceward.http import IdempotencyMiddleware, idempotency, idempotent
from onceward.http.keyed.operation import Operation
from onceward.store import Store
from onceward.testing import FaultyStore

# Larger than an entry can hold, but one piece with a declared length, so nothing is sent before it is settled.
LARGE = 200_000


class Run(NamedTuple):
    """One run of a handler."""

    key: str | None
    token: str


class FaultyServer:
    """An application with a route for each kind of response. `runs` counts its handlers; `during` is called in them."""

    def __init__(self, store: Store, **options: Any) -> None:
        self.store = FaultyStore(store)
        self.runs: list[Run] = []
        self.during: Callable[[Operation], object] = lambda _: None
        self.in_stream: Callable[[int], object] = lambda _: None
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        app = Starlette(routes=self._routes())
        options = {"metrics": False, "purge_seconds": 0.0, **options}
        app.add_middleware(IdempotencyMiddleware, store=self.store, **options)
        config = uvicorn.Config(app, log_level="critical", access_log=False, timeout_graceful_shutdown=5)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, args=([self._listening],))
        self._thread.start()
        until(lambda: self._server.started, "the server does not start")

    def send_request(self, path: str, key: str, *, wait: int = 0) -> RawResponse:
        """Send one request. Raises `OSError` if the response is cut."""
        return send_request(self.port, path, key, wait=wait)

    def counts(self) -> Counter[str | None]:
        return Counter(run.key for run in self.runs)

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join()
        self._listening.close()
        # The middleware closes only a store that it has opened.
        self.store.close()

    def _routes(self) -> list[Route]:
        async def small(request: Request) -> Response:
            return JSONResponse({"token": self._run(request)}, 201)

        async def held(request: Request) -> Response:
            return JSONResponse({"token": self._run(request)}, 201)

        async def large(request: Request) -> Response:
            return Response(self._run(request).encode().ljust(LARGE, b"."), 201)

        async def stream(request: Request) -> Response:
            return StreamingResponse(self._pieces(self._run(request)), 201)

        async def held_stream(request: Request) -> Response:
            return StreamingResponse(self._pieces(self._run(request)), 201)

        async def broken(request: Request) -> Response:
            return Response(self._run(request), 500)

        async def wide(request: Request) -> Response:
            headers = {f"x-wide-{number}": "w" * 20_000 for number in range(4)}
            return StreamingResponse(self._pieces(self._run(request)), 201, headers)

        hold = idempotent(on_crash="hold")
        handlers = {
            "/small": small,
            "/large": large,
            "/stream": stream,
            "/hold": hold(held),
            "/hold-stream": hold(held_stream),
            "/broken": broken,
            "/wide": wide,
        }
        return [Route(path, handler, methods=["POST"]) for path, handler in handlers.items()]

    def _run(self, request: Request) -> str:
        operation = idempotency(request)
        token = new_token()
        self.runs.append(Run(operation.key, token))
        self.during(operation)
        return token

    async def _pieces(self, token: str) -> AsyncIterator[bytes]:
        for number in range(PIECES):
            self.in_stream(number)
            yield piece(token, number)


def expected(path: str, token: str) -> bytes:
    """Return the response of a run with this token."""
    match path:
        case "/small" | "/hold":
            return f'{{"token":"{token}"}}'.encode()
        case "/large":
            return token.encode().ljust(LARGE, b".")
        case "/stream" | "/hold-stream" | "/wide":
            return whole_body(token)
        case _:
            return token.encode()
