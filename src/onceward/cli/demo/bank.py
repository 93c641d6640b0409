"""The bank of the demo: an HTTP server in the demo's own process, so that it survives the shop.

It books a charge at once. For an order that the demo pauses, it then delays its answer until the demo has killed the
shop: the charge has happened, and the shop never learns of it.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

# A demo that waits this long has failed.
WAIT_SECONDS = 20.0


@dataclass
class Bank:
    """The booked charges by their id. With an idempotency key, the same key is booked once."""

    charges: dict[str, str] = field(default_factory=dict)
    _keys: dict[str, str] = field(default_factory=dict)
    _paused: dict[str, tuple[threading.Event, threading.Event]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def pause(self, order: str) -> None:
        """Delay the first answer about an order until `resume`."""
        self._paused[order] = threading.Event(), threading.Event()

    def wait_until_booked(self, order: str) -> bool:
        return self._paused[order][0].wait(WAIT_SECONDS)

    def resume(self, order: str) -> None:
        _, resumed = self._paused.pop(order)
        resumed.set()

    def charges_of(self, order: str) -> list[str]:
        return [charge for charge, booked in self.charges.items() if booked == order]

    def book(self, order: str, key: str | None) -> str:
        with self._lock:
            if key is not None and key in self._keys:
                return self._keys[key]
            charge = f"ch_{len(self.charges) + 1}"
            self.charges[charge] = order
            if key is not None:
                self._keys[key] = charge
            paused = self._paused.get(order)
        if paused is not None:
            booked, resumed = paused
            booked.set()
            resumed.wait(WAIT_SECONDS)
        return charge


@contextmanager
def running_bank() -> Iterator[tuple[Bank, str]]:
    """Serve a bank on loopback, and yield it with its address."""
    bank = Bank()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            order = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["order"]
            body = json.dumps({"charge": bank.book(order, self.headers.get("Idempotency-Key"))}).encode()
            self.send_response(201)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Print nothing: the demo tells its own story."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: Any) -> None:
            """Print nothing: a killed shop does not read its answer."""

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield bank, f"127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
