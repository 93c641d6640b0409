"""A shop with a route that must not run twice, on the ledger of the hub: its payments end without a result."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Self
from wsgiref.simple_server import WSGIRequestHandler, make_server

import httpx

from onceward.http import WSGIIdempotencyMiddleware
from onceward.http.client import Intents, RetryTransport
from onceward.ledger import Ledger

# A client asks again after this time. It is short, because a test waits for it.
_PAUSE_SECONDS = 0.1


class _QuietHandler(WSGIRequestHandler):
    def log_message(self, *_: object) -> None: ...


class Shop:
    """Charges at most once for each order; `charged` lists the charges of the bank. It listens on loopback."""

    def __init__(self, ledger: Ledger) -> None:
        self.charged: list[str] = []
        app = WSGIIdempotencyMiddleware(self._app, store=ledger, principal=lambda _environ: "shopper", on_crash="hold")
        self._server = make_server("127.0.0.1", 0, app, handler_class=_QuietHandler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def _app(self, environ: dict[str, Any], _start_response: Any) -> Iterable[bytes]:
        self.charged.append(environ["PATH_INFO"].rpartition("/")[2])
        raise ConnectionError("the bank did not answer")

    def pay(self, order: str) -> httpx.Response:
        """Send the payment of an order once, always under the same key."""
        return httpx.post(f"{self.url}/pay/{order}", headers={"Idempotency-Key": f"pay-{order}"}, timeout=30.0)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class WaitingClient:
    """A client in a thread of its own, which asks for the outcome of its payment until there is one.

    It sends the same request with the same key, as after a restart of its process: 409 `in-doubt` is final for the
    transport, so the application asks again. `responses` lists all responses.
    """

    def __init__(self, url: str, intents: Intents, order: str) -> None:
        self.responses: list[httpx.Response] = []
        self.asked = threading.Event()
        self._stop = threading.Event()
        self._url, self._intents, self._order = url, intents, order
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        with httpx.Client(transport=RetryTransport(deadline_seconds=5.0), base_url=self._url) as client:
            key = self._intents.key_for(self._order)
            while not self._stop.is_set():
                headers = {"Idempotency-Key": key, "Prefer": "wait=1"}
                response = client.post(f"/pay/{self._order}", headers=headers)
                self.responses.append(response)
                if response.status_code == 409 and response.json()["code"] == "in-doubt":
                    self.asked.set()
                    self._stop.wait(_PAUSE_SECONDS)
                elif response.status_code < 500:
                    self._intents.done(self._order, key)
                    return

    def join(self, seconds: float) -> None:
        """Wait until the client has an outcome."""
        self._thread.join(seconds)

    def _close(self) -> None:
        self._stop.set()
        self._thread.join()

    @contextmanager
    def running(self) -> Iterator[Self]:
        self._thread.start()
        try:
            yield self
        finally:
            self._close()
