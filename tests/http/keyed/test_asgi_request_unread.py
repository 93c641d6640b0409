"""Handlers that run before their body has arrived: a digest replaces it, and they get every message of the server."""

from __future__ import annotations

import asyncio
import base64
import hashlib
from typing import Any

import pytest
from tests.http.asgi_server import Call, give, protected, read, reply, run, send_request, start
from tests.waiting import soon

from onceward.http import Rule
from onceward.http.asgi_types import Message, Receive, Send

PIECES = tuple(b"%d" % number * 1000 for number in range(8))
DIGEST = base64.b64encode(hashlib.sha256(b"".join(PIECES)).digest())
HEADERS = [(b"idempotency-key", b"k"), (b"content-digest", b"sha-256=:" + DIGEST + b":")]
RULES = {"/*": Rule(digest=True)}


@pytest.mark.parametrize("kind", [b"text/plain", b"text/event-stream"])
def test_a_handler_that_responds_before_it_reads_its_body_gets_all_of_it(kind: bytes) -> None:
    async def app(_scope: Any, receive: Receive, send: Send) -> None:
        await start(send, (b"content-type", kind))
        await give(send, b"data: here\n\n")
        await asyncio.sleep(0)  # who else would read has its turn
        body = await read(receive)
        await give(send, b"data: %d\n\n" % len(body), more=False)

    async def main() -> None:
        with protected(app, rules=RULES) as middleware:
            first = await send_request(middleware, "/", *PIECES, headers=HEADERS)
            retry = await send_request(middleware, "/", *PIECES, headers=HEADERS)

            assert (first.whole, first.replayed) == (True, False)
            assert b"data: 8000\n\n" in first.body
            assert (retry.body, retry.replayed) == (first.body, True)

    run(main())


def test_a_handler_that_ends_silently_on_a_broken_body_leaves_the_refusal_to_the_middleware() -> None:
    """Django takes it for a disconnected client and sends no response."""
    seen: list[str] = []

    async def app(_scope: Any, receive: Receive, send: Send) -> None:
        while (message := await receive()).get("more_body"):
            pass
        seen.append(message["type"])
        if message["type"] == "http.request":
            await reply(send, b"done")

    async def main() -> None:
        with protected(app, rules=RULES) as middleware:
            lie = await send_request(middleware, "/", b"something else", headers=HEADERS)
            retry = await send_request(middleware, "/", *PIECES, headers=HEADERS)

            assert (lie.status, lie.whole) == (400, True)
            assert (retry.status, retry.body, retry.replayed) == (201, b"done", False)
            assert seen == ["http.disconnect", "http.request"]

    run(main())


def test_a_client_that_disconnects_after_its_body_was_read_is_noticed() -> None:
    async def main() -> None:
        ended: list[str] = []

        async def app(_scope: Any, receive: Receive, send: Send) -> None:
            await start(send)
            await give(send, b"%d" % len(await read(receive)))
            try:
                await asyncio.Event().wait()
            except BaseException as error:
                ended.append(type(error).__name__)
                raise

        with protected(app, rules=RULES, max_stream_seconds=0.01) as middleware:
            first = Call(middleware, "/", *PIECES, headers=HEADERS)
            await first.has(lambda got: got.pieces)
            first.leave()
            await first.task
            await soon(lambda: ended)
            await soon(lambda: not middleware._tasks)

            assert ended == ["CancelledError"]

    run(main())


def test_a_handler_cancelled_while_it_reads_its_body_ends() -> None:
    """Half a body is not the request. Some servers report a disconnected client only once."""

    async def main() -> None:
        messages: asyncio.Queue[Message] = asyncio.Queue()
        ended: list[str] = []
        began, go_on = asyncio.Event(), asyncio.Event()

        async def app(_scope: Any, receive: Receive, _send: Send) -> None:
            try:
                await receive()
                began.set()
                await go_on.wait()
                await receive()
                ended.append("well")
            except BaseException as error:
                ended.append(type(error).__name__)
                raise

        async def nowhere(_message: Message) -> None:
            """Send nothing: the client has disconnected."""

        with protected(app, rules=RULES) as middleware:
            scope = {"type": "http", "method": "POST", "path": "/", "query_string": b"", "headers": HEADERS}
            messages.put_nowait({"type": "http.request", "body": PIECES[0], "more_body": True})
            call = asyncio.ensure_future(_call(middleware, scope, messages.get, nowhere))
            await began.wait()
            messages.put_nowait({"type": "http.disconnect"})
            call.cancel()
            await asyncio.wait({call})
            go_on.set()
            await soon(lambda: not middleware._tasks)

            assert ended == ["CancelledError"]

    run(main())


async def _call(app: Any, scope: Any, receive: Receive, send: Send) -> None:
    await app(scope, receive, send)
