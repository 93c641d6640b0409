"""Requests that the middleware passes on unchanged, extensions that it hides from keyed requests, and application start
and stop.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import pytest
from tests.http.asgi_server import Call, give, protected, read, reply, run, send_request, start
from tests.waiting import soon

from onceward import Ledger, open_ledger
from onceward.core.claim import Entry
from onceward.errors import StoreClosed
from onceward.http import IdempotencyMiddleware, idempotency
from onceward.http.asgi_types import App, Message, Receive, Send
from onceward.http.keyed.operation import GUARDED
from onceward.http.middleware import asgi
from onceward.store.memory import MemoryStore

SENT_PAST = ("http.response.pathsend", "http.response.zerocopysend", "http.response.trailers")


class LifespanServer:
    """An application under a server that starts and stops it: `async with LifespanServer(app): ...`."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._messages: asyncio.Queue[Message] = asyncio.Queue()
        self.sent_types: list[str] = []

    async def _send(self, message: Message) -> None:
        self.sent_types.append(message["type"])

    async def __aenter__(self) -> Self:
        await self._messages.put({"type": "lifespan.startup"})
        self._task = asyncio.ensure_future(_call(self._app, self._messages.get, self._send))
        await soon(lambda: self.sent_types)
        return self

    def stop(self) -> None:
        self._messages.put_nowait({"type": "lifespan.shutdown"})

    async def __aexit__(self, *_error: object) -> None:
        self.stop()
        await self._task


async def _call(app: App, receive: Receive, send: Send) -> None:
    await app({"type": "lifespan", "asgi": {"version": "3.0"}}, receive, send)


class Counter:
    """An application with a lifespan, which counts its requests."""

    def __init__(self) -> None:
        self.runs = 0
        self.began = asyncio.Event()
        self.go_on = asyncio.Event()
        self.ended: list[str] = []

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            for _ in range(2):
                kind = (await receive())["type"]
                await send({"type": f"{kind}.complete"})
            return
        self.runs += 1
        if scope["path"] == "/stream":
            try:
                await start(send)
                await give(send, b"1")
                self.began.set()
                await self.go_on.wait()
                self.ended.append("well")
            except BaseException as error:
                self.ended.append(type(error).__name__)
                raise
            await give(send, more=False)
        else:
            await reply(send, b"%d" % self.runs)


def test_a_middleware_inside_another_leaves_the_request_to_it() -> None:
    async def main() -> None:
        app = Counter()
        with protected(app) as inner, protected(inner, inner._admission.ledger) as outer:
            first, retry = await send_request(outer), await send_request(outer)

            assert (first.status, first.body, first.replayed) == (201, b"1", False)
            assert (retry.status, retry.body, retry.replayed) == (201, b"1", True)
            assert (await send_request(inner, key="other")).body == b"2"

    run(main())


def test_paths_that_differ_only_in_their_encoding_are_different_requests() -> None:
    async def main() -> None:
        with protected(Counter()) as middleware:
            for key, path, raw, other in (
                ("slash", "/a/b/c", b"/a/b%2Fc", b"/a/b/c"),
                ("bytes", "/a/\N{REPLACEMENT CHARACTER}", b"/a/%ff", b"/a/%fe"),
            ):
                first = await send_request(middleware, path, key=key, raw_path=raw)
                assert first.status == 201
                assert (await send_request(middleware, path, key=key, raw_path=other)).status == 422
                assert (await send_request(middleware, path, key=key, raw_path=raw)).replayed

    run(main())


@pytest.mark.parametrize("raw", [{}, {"raw_path": None}, {"raw_path": b""}])
def test_without_a_raw_path_the_decoded_path_is_used(raw: dict[str, Any]) -> None:
    async def main() -> None:
        with protected(Counter()) as middleware:
            assert (await send_request(middleware, "/ä", **raw)).status == 201
            assert (await send_request(middleware, "/ö", **raw)).status == 422
            assert (await send_request(middleware, "/ä", **raw)).replayed

    run(main())


@pytest.mark.parametrize("extension", SENT_PAST)
def test_extensions_that_bypass_the_middleware_are_hidden_from_a_keyed_handler(extension: str) -> None:
    offered: list[dict[str, Any]] = []

    async def app(scope: Any, _receive: Receive, send: Send) -> None:
        offered.append(scope["extensions"])
        await reply(send)

    async def main() -> None:
        extensions: dict[str, Any] = {extension: {}, "tls": {"version": 772}}
        with protected(app) as middleware:
            await send_request(middleware, extensions=extensions)
            await send_request(middleware, key=None, extensions=extensions)

        assert offered == [{"tls": {"version": 772}}, {extension: {}, "tls": {"version": 772}}]
        assert extension in extensions, "the server's own is not touched"

    run(main())


def test_a_scope_without_extensions_stays_without_them() -> None:
    async def app(scope: Any, receive: Receive, send: Send) -> None:
        assert "extensions" not in scope
        await reply(send, await read(receive))

    async def main() -> None:
        with protected(app) as middleware:
            assert (await send_request(middleware, "/", b"x")).body == b"x"

    run(main())


@pytest.mark.parametrize("kind", ["websocket", "lifespan", "something new"])
def test_a_scope_that_is_not_http_passes_through_even_with_a_key(kind: str) -> None:
    async def main() -> None:
        scope = {"type": kind, "path": "/", "method": "POST", "headers": [(b"idempotency-key", b"k")]}
        came: list[Message] = []
        sent: list[Message] = []

        async def app(given: Any, receive: Receive, send: Send) -> None:
            assert given is scope
            assert idempotency(given, default=None) is None
            came.append(await receive())
            await send({"type": f"{kind}.accept"})

        async def receive() -> Message:
            return {"type": f"{kind}.connect"}

        async def send(message: Message) -> None:
            sent.append(message)

        with protected(app) as middleware:
            await middleware(scope, receive, send)

        assert came == [{"type": f"{kind}.connect"}]
        assert sent == [{"type": f"{kind}.accept"}]

    run(main())


def test_without_a_key_the_application_gets_the_servers_own_objects() -> None:
    async def main() -> None:
        given: list[object] = []

        async def app(scope: Any, receive: Receive, send: Send) -> None:
            given.extend((scope, receive, send))
            await reply(send)

        with protected(app) as middleware:
            call = Call(middleware, key=None)
            await call.task

        assert given == [call.scope, call._receive, call._send]
        assert call.scope["onceward"] is GUARDED, "the only trace is the mark that a middleware was there"

    run(main())


def test_a_ledger_opened_from_a_url_closes_with_the_application_and_reopens_when_it_starts_again(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        app = Counter()
        middleware = IdempotencyMiddleware(app, f"sqlite:///{tmp_path}/keys.db", metrics=False)
        for life in range(3):
            ledger = middleware._admission.ledger
            async with LifespanServer(middleware) as served:
                retry = await send_request(middleware)
                assert (retry.status, retry.body, retry.replayed) == (201, b"1", life > 0)
            assert served.sent_types == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
            with pytest.raises(StoreClosed):
                await ledger.read("s", "k")
        assert app.runs == 1
        middleware._admission.close()

    run(main())


def test_a_ledger_of_the_application_stays_open_when_it_stops() -> None:
    async def main() -> None:
        with protected(Counter()) as middleware:
            async with LifespanServer(middleware):
                assert (await send_request(middleware)).status == 201

            assert (await send_request(middleware)).replayed

    run(main())


def test_an_application_that_stops_waits_for_requests_without_a_client() -> None:
    async def main() -> None:
        app = Counter()
        with protected(app) as middleware:
            async with LifespanServer(middleware) as served:
                first = Call(middleware, "/stream")
                await app.began.wait()
                first.leave()
                await first.task
                served.stop()
                for _ in range(10):
                    await asyncio.sleep(0)
                assert served.sent_types == ["lifespan.startup.complete"]
                app.go_on.set()
                await soon(lambda: len(served.sent_types) == 2)

            assert app.ended == ["well"]
            assert (await send_request(middleware, "/stream")).replayed

    run(main())


def test_a_stopping_application_does_not_wait_forever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asgi, "GRACE_SECONDS", 0.02)

    async def main() -> None:
        app = Counter()
        with protected(app) as middleware:
            async with LifespanServer(middleware):
                first = Call(middleware, "/stream")
                await app.began.wait()
                first.leave()
                await first.task

            assert app.ended == ["CancelledError"]
            app.go_on.set()
            assert (await send_request(middleware, "/stream")).body == b"1"
            assert app.runs == 2, "nobody knew what the first one did"

    run(main())


def test_a_doubt_left_by_a_killed_process_shows_after_a_restart_without_any_request() -> None:
    heard: list[str] = []

    def hear(entry: Entry) -> None:
        heard.append(entry.key)

    async def main() -> None:
        async with open_ledger("memory:", on_doubt=hear) as ledger:
            await ledger.begin("http:anonymous", "letter-1", repeatable=False, lease_seconds=0.001)
            async with LifespanServer(IdempotencyMiddleware(Counter(), store=ledger, purge_seconds=0.01)):
                await soon(lambda: heard, "nobody asks for a key, so the doubt stays hidden", seconds=5)

    run(main())

    assert heard == ["letter-1"]


def test_an_expired_key_that_is_refused_gets_409_and_nothing_runs() -> None:
    store, runs = MemoryStore(), []

    async def app(_scope: Any, receive: Receive, send: Send) -> None:
        runs.append(await read(receive))
        await reply(send, b"done")

    async def main() -> None:
        async with Ledger(store) as ledger:
            guarded = IdempotencyMiddleware(app, ledger)
            await send_request(guarded)
            ((ref, entry),) = store._entries.items()
            store._entries[ref] = replace(entry, expires_at=1, refuse_until=2**60)
            again = await send_request(guarded)
        assert (again.status, json.loads(again.body)["code"], len(runs)) == (409, "expired", 1)

    run(main())
