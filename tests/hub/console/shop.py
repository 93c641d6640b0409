"""A shop with a route that must not run twice, on the ledger of the hub: its first payment ends without a result."""

from __future__ import annotations

import asyncio
from typing import Any, Self

import httpx

from onceward.http import IdempotencyMiddleware
from onceward.http.asgi_types import Receive, Send
from onceward.ledger import Ledger


class Shop:
    """Charges at most once for each order; `charged` lists the charges of the bank."""

    def __init__(self, ledger: Ledger) -> None:
        self.charged: list[str] = []
        self._runner = asyncio.Runner()
        app = IdempotencyMiddleware(self._app, store=ledger, principal=lambda _scope: "shopper", on_crash="hold")
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        self._client = httpx.AsyncClient(transport=transport, base_url="http://shop")

    async def _app(self, scope: Any, _receive: Receive, _send: Send) -> None:
        self.charged.append(scope["path"].rpartition("/")[2])
        raise ConnectionError("the bank did not answer")

    def pay(self, order: str) -> httpx.Response:
        """Send the payment of an order, always under the same key."""
        return self._runner.run(self._client.post(f"/pay/{order}", headers={"Idempotency-Key": f"pay-{order}"}))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.run(self._client.aclose())
        self._runner.close()
