"""One scope, several calls: an application that is called again from outside, and a middleware inside another."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from tests.http import wsgi_server
from tests.http.asgi_server import protected, read, reply, run, send_request
from tests.http.wsgi_server import TEXT, Environ, Start
from tests.waiting import soon

from onceward.core.claim import Begin, Write, WriteResult
from onceward.http import WSGIIdempotencyMiddleware, idempotency
from onceward.http.asgi_types import App, Message, Receive, Send
from onceward.http.response.wsgi_exchange import WsgiExchange
from onceward.ledger import Ledger
from onceward.store.memory import MemoryStore
from onceward.testing import FaultyStore

FAILURES = ["raises", "answers 503"]


class NotifyingStore(MemoryStore):
    """Reports each begin."""

    def __init__(self, key_begun: threading.Semaphore) -> None:
        super().__init__()
        self._key_begun = key_begun

    def commit(self, writes: Sequence[Write]) -> list[WriteResult]:
        answers = super().commit(writes)
        for write in writes:
            if isinstance(write, Begin):
                self._key_begun.release()
        return answers


class Unavailable(Exception):
    """A dependency of the shop is down."""


class Shop:
    """Fails in its first run: it raises, or responds 503."""

    def __init__(self, failure: str = "") -> None:
        self.runs = 0
        self._failure = failure

    def _status(self) -> int:
        self.runs += 1
        if self.runs == 1 and self._failure == "raises":
            raise Unavailable
        return 503 if self.runs == 1 and self._failure else 201

    async def asgi(self, scope: Any, receive: Receive, send: Send) -> None:
        assert idempotency(scope).key == "k"
        body = await read(receive)
        status = self._status()
        await reply(send, b"run %d of %b" % (self.runs, body), status)

    def wsgi(self, environ: Environ, start_response: Start) -> Iterable[bytes]:
        assert idempotency(environ).key == "k"
        body = environ["wsgi.input"].read(-1)
        start_response(f"{self._status()} Said", list(TEXT))
        return [b"run %d of %b" % (self.runs, body)]


def again(app: App) -> App:
    """Calls the application once more with the same scope when it failed, before anything is sent."""

    async def outer(scope: Any, receive: Receive, send: Send) -> None:
        body = await read(receive)
        sent: list[Message] = []

        async def given() -> Message:
            return {"type": "http.request", "body": body, "more_body": False}

        async def held(message: Message) -> None:
            sent.append(message)

        try:
            await app(scope, given, held)
        except Unavailable:
            sent.clear()
        if not sent or sent[0]["status"] == 503:
            sent.clear()
            await app(scope, given, held)
        for message in sent:
            await send(message)

    return outer


def wsgi_again(app: wsgi_server.App) -> wsgi_server.App:
    """Call a WSGI application again in the same way."""

    def outer(environ: Environ, start_response: Start) -> Iterable[bytes]:
        body = environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))
        started: list[Any] = []

        def once() -> list[bytes]:
            environ["wsgi.input"] = io.BytesIO(body)
            response: Any = app(environ, lambda *line: started.append(line))
            pieces = list(response)
            if hasattr(response, "close"):
                response.close()
            return pieces

        try:
            pieces = once()
        except Unavailable:
            pieces = once()
        if started[-1][0].startswith("503"):
            pieces = once()
        start_response(*started[-1])
        return pieces

    return outer


@pytest.mark.parametrize("failure", FAILURES)
def test_an_application_called_again_with_one_scope_is_protected_again(failure: str) -> None:
    async def main() -> None:
        shop = Shop(failure)
        with protected(shop.asgi) as middleware:
            first, retry = (
                await send_request(again(middleware), "/", b"tea"),
                await send_request(again(middleware), "/", b"tea"),
            )

            assert (first.status, first.body, first.replayed) == (201, b"run 2 of tea", False)
            assert (retry.status, retry.body, retry.replayed) == (201, b"run 2 of tea", True)

    run(main())


@pytest.mark.parametrize("failure", FAILURES)
def test_a_wsgi_application_called_again_with_one_environ_is_protected_again(failure: str) -> None:
    with Ledger(MemoryStore()) as ledger:
        app = wsgi_again(WSGIIdempotencyMiddleware(Shop(failure).wsgi, ledger))
        first, retry = wsgi_server.send_request(app, body=b"tea"), wsgi_server.send_request(app, body=b"tea")

        assert (first.status, first.body, first.replayed) == (201, b"run 2 of tea", False)
        assert (retry.status, retry.body, retry.replayed) == (201, b"run 2 of tea", True)


def test_an_unrecorded_response_is_not_run_again_by_a_second_call() -> None:
    async def main() -> None:
        shop, store = Shop(), FaultyStore(MemoryStore())

        async def app(scope: Any, receive: Receive, send: Send) -> None:
            store.lose_request("settle")
            await shop.asgi(scope, receive, send)

        with protected(app, store, store_seconds=0) as middleware:
            waits = [(b"idempotency-key", b"k"), (b"prefer", b"wait=5")]
            got = await send_request(again(middleware), "/", b"tea", headers=waits)
            await soon(lambda: not middleware._tasks)

            assert (got.status, got.body, got.replayed) == (201, b"run 1 of tea", True)

    run(main())


def test_under_wsgi_an_unrecorded_response_is_not_run_again_by_a_second_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The response is recorded in the background, here only after the second call has begun."""
    key_begun = threading.Semaphore(0)
    shop, store = Shop(), FaultyStore(NotifyingStore(key_begun))
    settle_late = WsgiExchange._settle_late

    def later(exchange: WsgiExchange) -> None:
        for _ in range(2):
            key_begun.acquire(timeout=5)
        settle_late(exchange)

    monkeypatch.setattr(WsgiExchange, "_settle_late", later)

    def app(environ: Environ, start_response: Start) -> Iterable[bytes]:
        store.lose_request("settle")
        return shop.wsgi(environ, start_response)

    with Ledger(store, patience_seconds=0) as ledger:
        outer = wsgi_again(WSGIIdempotencyMiddleware(app, ledger))
        got = wsgi_server.send_request(outer, body=b"tea", environ={"HTTP_PREFER": "wait=5"})

        assert (got.status, got.body, got.replayed) == (201, b"run 1 of tea", True)


def test_two_applications_called_in_turn_are_both_protected() -> None:
    async def nothing_here(_scope: Any, _receive: Receive, send: Send) -> None:
        await reply(send, status=404)

    async def main() -> None:
        shop = Shop()
        with protected(nothing_here) as one, protected(shop.asgi) as other:

            async def in_turn(scope: Any, _receive: Receive, send: Send) -> None:
                async def unheard(_message: Message) -> None:
                    """Drop the messages of the first call."""

                async def given() -> Message:
                    return {"type": "http.request", "body": b"", "more_body": False}

                await one(scope, given, unheard)
                await other(scope, given, send)

            assert not (await send_request(in_turn)).replayed
            assert (await send_request(in_turn)).replayed

    run(main())


def test_a_middleware_inside_another_sees_the_key_that_it_requires() -> None:
    async def main() -> None:
        with protected(Shop().asgi, required=True) as inner, protected(inner) as outer:
            first, retry, without = (
                await send_request(outer),
                await send_request(outer),
                await send_request(outer, key=None),
            )

            assert (first.status, first.replayed) == (201, False)
            assert (retry.status, retry.replayed) == (201, True)
            assert without.status == 400

    run(main())


def test_a_wsgi_middleware_inside_another_sees_the_key_that_it_requires() -> None:
    with Ledger(MemoryStore()) as ledger, Ledger(MemoryStore()) as around:
        inner = WSGIIdempotencyMiddleware(Shop().wsgi, ledger, required=True)
        outer = WSGIIdempotencyMiddleware(inner, around)
        first, retry, without = (
            wsgi_server.send_request(outer),
            wsgi_server.send_request(outer),
            wsgi_server.send_request(outer, key=None),
        )

        assert (first.status, first.replayed) == (201, False)
        assert (retry.status, retry.replayed) == (201, True)
        assert without.status == 400


def test_an_outer_middleware_sees_what_the_application_puts_into_the_scope() -> None:
    """Frameworks pass a replaced session or the found route outwards in the scope."""

    async def app(scope: Any, _receive: Receive, send: Send) -> None:
        scope["session"] = "new"
        await reply(send)

    async def main() -> None:
        seen: list[str] = []
        with protected(app) as middleware:

            async def around(scope: Any, receive: Receive, send: Send) -> None:
                async def send_and_note(message: Message) -> None:
                    seen.append(scope["session"])
                    await send(message)

                scope["session"] = "old"
                await middleware(scope, receive, send_and_note)

            await send_request(around)

        assert set(seen) == {"new"}

    run(main())
