"""The shop of the demo: a WSGI application with the idempotency middleware, in a process that the demo kills.

`/pay` sends its key to the bank, which books one key once, so that a retry may run again. `/pay-unkeyed` calls a bank
without idempotency keys: after a crash nobody knows whether the card was charged, so the rule is `on_crash="hold"`.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import sys
import threading
from collections.abc import Iterable
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from onceward.http import Rule, WSGIIdempotencyMiddleware, idempotency

UNKEYED = "/pay-unkeyed"
# The bank answers at once, except while the demo kills the shop.
_BANK_SECONDS = 30.0


class _Shop:
    def __init__(self, bank: str) -> None:
        self._bank = bank

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        order = json.loads(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"])))["order"]
        key = None if environ["PATH_INFO"] == UNKEYED else f"shop:{idempotency(environ).key}"
        body = json.dumps({"order": order, "charge": self._charge(order, key)}).encode()
        start_response("201 Created", [("Content-Type", "application/json"), ("Content-Length", str(len(body)))])
        return [body]

    def _charge(self, order: str, key: str | None) -> str:
        headers = {} if key is None else {"Idempotency-Key": key}
        with contextlib.closing(http.client.HTTPConnection(self._bank, timeout=_BANK_SECONDS)) as connection:
            connection.request("POST", "/charges", json.dumps({"order": order}), headers)
            charge: str = json.load(connection.getresponse())["charge"]
        return charge


class _Quiet(WSGIRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Print nothing: the demo tells its own story."""


def serve(descriptor: int, bank: str, store: str) -> None:
    """Serve the shop on a listening socket that the demo has opened."""
    app = WSGIIdempotencyMiddleware(_Shop(bank), store=store, rules={UNKEYED: Rule(on_crash="hold", required=True)})
    server = WSGIServer(("127.0.0.1", 0), _Quiet, bind_and_activate=False)
    server.socket.close()
    server.socket = socket.socket(fileno=descriptor)
    server.server_name, server.server_port = server.socket.getsockname()
    server.setup_environ()
    server.set_app(app)
    # The shop ends with the demo, however that ends: its end of the pipe is then closed.
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
    server.serve_forever()


if __name__ == "__main__":
    serve(int(sys.argv[1]), sys.argv[2], sys.argv[3])
