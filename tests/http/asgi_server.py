"""An in-process ASGI server for one request: its client may leave, and its call may be cancelled, at any time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from onceward.http import IdempotencyMiddleware
from onceward.http.asgi_types import App, Message, Receive, Send
from onceward.ledger import Ledger
from onceward.store import Store
from onceward.store.memory import MemoryStore

T = TypeVar("T")

# No test comes near it; one that hangs ends here.
BOUND_SECONDS = 10.0


@dataclass(slots=True)
class ReceivedResponse:
    """A response as received; complete if `whole` is true."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    pieces: list[bytes] = field(default_factory=list)
    whole: bool = False

    @property
    def body(self) -> bytes:
        return b"".join(self.pieces)

    @property
    def replayed(self) -> bool:
        return self.headers.get("idempotent-replayed") == "true"


class Call:
    """A request under way. As under uvicorn, what is sent to a client that left goes nowhere."""

    def __init__(self, app: App, path: str = "/", *body: bytes, key: str | None = "k", **scope: Any) -> None:
        self.got = ReceivedResponse()
        self.scope: dict[str, Any] = {
            "type": "http", "method": "POST", "path": path, "query_string": b"",
            "headers": [] if key is None else [(b"idempotency-key", key.encode())], **scope,
        }  # fmt: skip
        body = body or (b"",)
        self._body = [
            {"type": "http.request", "body": piece, "more_body": number < len(body)}
            for number, piece in enumerate(body, 1)
        ]
        self._body.reverse()
        self._gone = asyncio.Event()
        self._news = asyncio.Event()
        self.task = asyncio.ensure_future(_call(app, self.scope, self._receive, self._send))

    async def _receive(self) -> Message:
        if self._body:
            return self._body.pop()
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if self._gone.is_set():
            return
        got = self.got
        assert not got.whole, "a whole response has no more messages"
        if message["type"] == "http.response.start":
            assert not got.status, "a response starts once"
            got.status = message["status"]
            got.headers = {name.decode().lower(): value.decode("latin-1") for name, value in message["headers"]}
        else:
            assert got.status, "a response starts with its head"
            got.pieces.append(bytes(message.get("body", b"")))
            got.whole = not message.get("more_body", False)
        self._news.set()

    def leave(self) -> None:
        """Disconnect the client."""
        self._gone.set()

    async def has(self, check: Callable[[ReceivedResponse], object]) -> None:
        """Wait until this is true of the received response."""
        while not check(self.got):
            self._news.clear()
            await self._news.wait()

    async def cancelled(self) -> None:
        """Cancel the call once, as a timeout around the application does, and wait for its end."""
        self.task.cancel()
        await asyncio.wait({self.task})
        assert self.task.cancelled()


async def _call(app: App, scope: Any, receive: Receive, send: Send) -> None:
    await app(scope, receive, send)


async def send_request(
    app: App, path: str = "/", *body: bytes, key: str | None = "k", **scope: Any
) -> ReceivedResponse:
    """Send a request and wait for the whole response; exceptions of the application are raised."""
    call = Call(app, path, *body, key=key, **scope)
    await call.task
    return call.got


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a test, for a bounded time; an error that nobody was told of is its failure, too."""
    unhandled: list[dict[str, Any]] = []

    async def bounded() -> T:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unhandled.append(context))
        async with asyncio.timeout(BOUND_SECONDS):
            return await main

    result = asyncio.run(bounded())
    assert not unhandled, unhandled
    return result


@contextmanager
def protected(app: App, store: Store | Ledger | None = None, **options: Any) -> Iterator[IdempotencyMiddleware]:
    """The application behind the middleware. At the end, no request runs and no claim is renewed any more."""
    middleware = IdempotencyMiddleware(app, MemoryStore() if store is None else store, metrics=False, **options)
    ledger = middleware._admission.ledger
    try:
        yield middleware
        assert not middleware._tasks
        assert not ledger._dispatcher._renewals._active
    finally:
        ledger.close()


# Helpers for handlers.


async def read(receive: Receive) -> bytes:
    """Return the whole body of the request; `http.disconnect` is an error."""
    body = b""
    while True:
        message = await receive()
        assert message["type"] == "http.request", message
        body += bytes(message.get("body", b""))
        if not message.get("more_body", False):
            return body


async def start(send: Send, *headers: tuple[bytes, bytes], status: int = 201) -> None:
    await send({"type": "http.response.start", "status": status, "headers": list(headers)})


async def give(send: Send, data: bytes | bytearray = b"", *, more: bool = True) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": more})


async def reply(send: Send, body: bytes = b"", status: int = 201) -> None:
    """Send a complete response with a length."""
    await start(send, (b"content-length", str(len(body)).encode()), status=status)
    await give(send, body, more=False)
