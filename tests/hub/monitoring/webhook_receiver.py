"""An HTTP server on a loopback port that records the webhooks that it receives."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Received:
    """One request: its path, its headers by lower-case name, and its body."""

    def __init__(self, path: str, headers: dict[str, str], body: bytes) -> None:
        self.path = path
        self.headers = headers
        self.body = body

    @property
    def webhook_id(self) -> str:
        return self.headers["webhook-id"]


class Receiver:
    """`statuses` are the next statuses; then it responds with 204. While `unblocked` is clear, it does not respond."""

    def __init__(self) -> None:
        self.received: list[Received] = []
        self.statuses: list[int] = []
        self.unblocked = threading.Event()
        self.unblocked.set()
        self.url = ""

    @property
    def ids(self) -> list[str]:
        return [one.webhook_id for one in self.received]


@contextlib.contextmanager
def webhook_receiver() -> Iterator[Receiver]:
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            receiver.received.append(Received(self.path, headers, body))
            receiver.unblocked.wait(60)
            status = receiver.statuses.pop(0) if receiver.statuses else 204
            with contextlib.suppress(OSError):
                self.send_response(status)
                self.send_header("Location", "/elsewhere")
                self.send_header("Content-Length", "0")
                self.end_headers()

        def log_message(self, *given: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        receiver.url = f"http://127.0.0.1:{server.server_port}/hooks/doubts"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield receiver
        finally:
            receiver.unblocked.set()
            server.shutdown()
            thread.join()
