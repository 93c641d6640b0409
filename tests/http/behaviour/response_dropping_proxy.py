"""A proxy that loses responses after the effect: it closes the connection, or sends another status instead.

Each key has its own list of faults, used up one by one; then responses pass.
"""

from __future__ import annotations

import re
import socket
import threading
from collections import defaultdict
from collections.abc import Sequence

DROP = 0
_KEY = re.compile(rb"(?im)^idempotency-key:\s*(\S+)\s*$")
_LENGTH = re.compile(rb"(?im)^content-length:\s*([0-9]+)\s*$")


class ResponseDroppingProxy:
    """The proxy in front of one address. `close` ends it."""

    def __init__(self, upstream: tuple[str, int], faults: Sequence[int], *, hint: bool = True) -> None:
        self._upstream = upstream
        self._hint = b"Stripe-Should-Retry: true\r\n" if hint else b""
        self._faults: dict[bytes, list[int]] = defaultdict(lambda: list(faults))
        self._lock = threading.Lock()
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self.requests = 0
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        self._listening.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._handle, args=(connection,), daemon=True).start()

    def _handle(self, connection: socket.socket) -> None:
        with connection:
            request = _read_request(connection)
            if not request:
                return
            response = self._forward(request)
            found = _KEY.search(request)
            assert found is not None, "every client sends a key"
            with self._lock:
                self.requests += 1
                faults = self._faults[found[1]]
                fault = faults.pop(0) if faults else None
            if fault == DROP:
                return
            connection.sendall(response if fault is None else _instead(fault, self._hint))

    def _forward(self, request: bytes) -> bytes:
        head, _, body = request.partition(b"\r\n\r\n")
        lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"connection:")]
        with socket.create_connection(self._upstream, timeout=30) as upstream:
            upstream.sendall(b"\r\n".join([*lines, b"Connection: close"]) + b"\r\n\r\n" + body)
            pieces = []
            while piece := upstream.recv(65536):
                pieces.append(piece)
        return b"".join(pieces)


def _read_request(connection: socket.socket) -> bytes:
    data = b""
    while b"\r\n\r\n" not in data:
        piece = connection.recv(65536)
        if not piece:
            return b""
        data += piece
    length = _LENGTH.search(data.partition(b"\r\n\r\n")[0])
    whole = data.index(b"\r\n\r\n") + 4 + (int(length[1]) if length else 0)
    while len(data) < whole:
        data += connection.recv(65536)
    return data


def _instead(status: int, hint: bytes) -> bytes:
    body = b'{"error":{"type":"api_error","message":"lost"}}'
    return (
        b"HTTP/1.1 %d Lost\r\nContent-Type: application/json\r\nContent-Length: %d\r\nRetry-After: 0\r\n"
        b"%bConnection: close\r\n\r\n%b" % (status, len(body), hint, body)
    )
