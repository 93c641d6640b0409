"""No log and no traceback of a keyed request shows its whole key."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import traceback
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from onceward.core.claim import Claim
from onceward.http import IdempotencyMiddleware, idempotency
from onceward.ledger import Ledger
from onceward.store.sqlite import SqliteStore

KEY = "secret-key-0123456789-abcdefghijklmnopqrstuvwxyz"


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger(SqliteStore(tmp_path / "keys.db"), patience_seconds=0.1) as ledger:
        yield ledger


def sent(app: Any) -> str:
    """Send a keyed request, and return the traceback of its exception, if any."""

    messages: list[dict[str, object]] = [{"type": "http.request", "body": b"", "more_body": False}]

    async def receive() -> dict[str, object]:
        return messages.pop() if messages else await asyncio.Future()

    async def send(message: Any) -> None: ...

    scope: dict[str, Any] = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "path": "/",
        "raw_path": b"/", "root_path": "", "query_string": b"", "scheme": "http", "server": None, "client": None,
        "headers": [(b"host", b"shop"), (b"idempotency-key", KEY.encode())],
    }  # fmt: skip
    try:
        asyncio.run(app(scope, receive, send))
    except Exception:  # noqa: BLE001  # a server would log it, whatever it is
        return traceback.format_exc()
    return ""


def app_of(ledger: Ledger, handler: Any) -> Any:
    app = Starlette(routes=[Route("/", handler, methods=["POST"])])
    return IdempotencyMiddleware(app, store=ledger, metrics=False)


async def lose(ledger: Ledger) -> None:
    """Take over the claim of the one request."""
    (entry,) = (await ledger.scan()).entries
    assert entry.key == KEY
    assert await ledger.release(Claim(entry, None))


@pytest.mark.parametrize("size", [10, 200_000])
@pytest.mark.parametrize("streamed", [True, False])
def test_the_key_of_a_request_that_lost_its_claim_is_redacted(
    ledger: Ledger, caplog: pytest.LogCaptureFixture, size: int, *, streamed: bool
) -> None:
    async def handle(request: Request) -> Response:
        async def pieces() -> AsyncIterator[bytes]:
            yield bytes(size)
            await lose(ledger)
            for _ in range(3):
                yield bytes(size)

        if streamed:
            return StreamingResponse(pieces())
        await lose(ledger)
        return Response(bytes(size), headers={"x-key": str(len(idempotency(request).key or ""))})

    with caplog.at_level(logging.DEBUG):
        shown = sent(app_of(ledger, handle)) + caplog.text

    assert KEY[:20] in shown or not streamed, "the claim was lost, and somebody said so"
    assert KEY[:21] not in shown


def test_the_key_of_a_transaction_bound_to_a_lost_claim_is_redacted(
    ledger: Ledger, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def handle(request: Request) -> Response:
        await lose(ledger)
        with closing(sqlite3.connect(tmp_path / "keys.db")) as connection:
            idempotency(request).bind(connection)
        return PlainTextResponse("never")

    with caplog.at_level(logging.DEBUG):
        shown = sent(app_of(ledger, handle)) + caplog.text

    assert f"the claim on '{KEY[:20]}...' was taken over" in shown
    assert KEY[:21] not in shown
