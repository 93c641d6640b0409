"""A shop with a route that must not run twice, on the ledger of the hub: its payments end without a result."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Self

import httpx

from onceward.http import WSGIIdempotencyMiddleware
from onceward.ledger import Ledger


class Shop:
    """Charges at most once for each order; `charged` lists the charges of the bank."""

    def __init__(self, ledger: Ledger) -> None:
        self.charged: list[str] = []
        app = WSGIIdempotencyMiddleware(self._app, store=ledger, principal=lambda _environ: "shopper", on_crash="hold")
        self._client = httpx.Client(
            transport=httpx.WSGITransport(app, raise_app_exceptions=False), base_url="http://shop"
        )

    def _app(self, environ: dict[str, Any], _start_response: Any) -> Iterable[bytes]:
        self.charged.append(environ["PATH_INFO"].rpartition("/")[2])
        raise ConnectionError("the bank did not answer")

    def pay(self, order: str) -> httpx.Response | None:
        """Send the payment of an order, always under the same key. None: the shop broke down."""
        try:
            return self._client.post(f"/pay/{order}", headers={"Idempotency-Key": f"pay-{order}"})
        except ConnectionError:
            return None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()
