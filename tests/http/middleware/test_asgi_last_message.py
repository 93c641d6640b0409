"""The middleware's own responses mark their last message as the last; some clients rely on it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from onceward.http import IdempotencyMiddleware


async def app(_scope: Any, _receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 201, "headers": []})
    await send({"type": "http.response.body", "body": b"x" * 200_000, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def messages(middleware: IdempotencyMiddleware, key: bytes) -> list[Any]:
    sent: list[Any] = []

    async def receive() -> Any:
        if sent:
            await asyncio.Event().wait()
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"idempotency-key", key)]
    scope = {"type": "http", "method": "POST", "path": "/", "query_string": b"", "headers": headers}
    await middleware(scope, receive, send)
    return sent


@pytest.mark.parametrize("key", [b"good", b"not good"], ids=["replay", "problem"])
def test_the_last_message_has_more_body_false(key: bytes) -> None:
    async def main() -> list[Any]:
        middleware = IdempotencyMiddleware(app, store="memory:", metrics=False)
        await messages(middleware, key)
        try:
            return await messages(middleware, key)
        finally:
            middleware._admission.close()

    *_, last = asyncio.run(main())

    assert last["more_body"] is False
