"""A load balancer on a real socket: like many, it sets a new cookie on every response, also on its own 502."""

from __future__ import annotations

import http.client
import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

# Far longer than a response takes on a busy machine: it ends a test that would hang.
ANSWER_SECONDS_MAX = 60.0
# They belong to one connection, and the proxy has its own.
_HOP_BY_HOP = {"connection", "transfer-encoding", "keep-alive"}


class CookieProxy(ThreadingHTTPServer):
    """Passes every request on to `upstream`. The first `lost` responses are replaced by a 502 after they have come."""

    daemon_threads = True

    def __init__(self, upstream: tuple[str, int], lost: int) -> None:
        super().__init__(("127.0.0.1", 0), _Passing)
        self.upstream = upstream
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.cookies: list[str] = []  # the Cookie header of each request; empty where there was none
        self._lost = lost
        self._numbers = itertools.count(1)
        self._mutex = threading.Lock()

    def seen(self, cookie: str) -> tuple[int, bool]:
        """Return the number of this request, and whether its response is lost."""
        with self._mutex:
            self.cookies.append(cookie)
            number = next(self._numbers)
            return number, number <= self._lost


class _Passing(BaseHTTPRequestHandler):
    server: CookieProxy

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        number, lost = self.server.seen(self.headers.get("Cookie", ""))
        upstream = http.client.HTTPConnection(*self.server.upstream, timeout=ANSWER_SECONDS_MAX)
        try:
            upstream.request("POST", self.path, body, dict(self.headers.items()))
            response = upstream.getresponse()
            content = response.read()
        finally:
            upstream.close()
        self.send_response(502 if lost else response.status)
        for name, value in response.getheaders() if not lost else ():
            if name.lower() not in {*_HOP_BY_HOP, "content-length"}:
                self.send_header(name, value)
        content = b"Bad Gateway" if lost else content
        self.send_header("Set-Cookie", f"balancer=node-{number}; Path=/")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@contextmanager
def cookie_proxy(upstream: tuple[str, int], lost: int = 1) -> Iterator[CookieProxy]:
    """A proxy on its own port, in its own thread."""
    with CookieProxy(upstream, lost) as proxy:
        thread = threading.Thread(target=proxy.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield proxy
        finally:
            proxy.shutdown()
            thread.join()
