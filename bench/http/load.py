"""Keep-alive HTTP/1.1 load from one thread: prebuilt bytes, one request at a time on each connection.

It uses plain sockets because it shares a small machine with the server that it measures. While a FastAPI route runs, it
is idle most of the time.
"""

from __future__ import annotations

import enum
import gc
import random
import selectors
import socket
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from bench.contest import Unable

CONNECTIONS_MAX = 64
# Keys that each connection replays in turn.
REPLAY_KEYS = 2
# A server that sends nothing for this long is stuck, and its row gets a dash.
ANSWER_SECONDS = 15.0

CREATED = b"HTTP/1.1 201 Created"
_BODY = b'{"amount":10,"currency":"EUR"}'
_HEAD = (
    b"POST /payments HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: */*\r\nContent-Type: application/json\r\n"
    b"Authorization: Bearer 5d41402abc4b2a76b9719d911017c592\r\nContent-Length: %d\r\n" % len(_BODY)
)
_NO_KEY = _HEAD + b"\r\n" + _BODY
_GET_RUNS = b"GET /runs HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


class Mode(enum.StrEnum):
    FRESH = "fresh"
    REPLAY = "replay"
    REPLAY_ONE = "replay, one key"
    NO_KEY = "no key"


def keyed(key: bytes) -> bytes:
    return b"%bIdempotency-Key: %b\r\n\r\n%b" % (_HEAD, key, _BODY)


SETTLED = [
    [keyed(b"replay-%d-%d" % (connection, turn)) for turn in range(REPLAY_KEYS)]
    for connection in range(CONNECTIONS_MAX)
]
_ONE = SETTLED[0][0]


def request_of(mode: Mode) -> Callable[[int, int], bytes]:
    """Return a function for the n-th request of a connection. Fresh keys are random, as those of real clients."""
    match mode:
        case Mode.FRESH:
            return lambda _connection, _number: keyed(b"%032x" % random.getrandbits(128))
        case Mode.REPLAY:
            return lambda connection, number: SETTLED[connection][number % REPLAY_KEYS]
        case Mode.REPLAY_ONE:
            return lambda _connection, _number: _ONE
        case Mode.NO_KEY:
            return lambda _connection, _number: _NO_KEY


@dataclass(frozen=True, slots=True)
class LoadResult:
    """Counts of one run: `first_lines` counts responses by status line, `marked` those that are marked as replays."""

    requests: int
    seconds: float
    first_lines: Counter[bytes]
    marked: int

    @property
    def rate(self) -> float:
        return self.requests / self.seconds


class Connections:
    """Open connections that were used once, so that accepting them is not part of the measurement."""

    def __init__(self, port: int, count: int) -> None:
        self._connections: list[socket.socket] = []
        self._selector = selectors.DefaultSelector()
        try:
            for number in range(count):
                connection = socket.create_connection(("127.0.0.1", port), timeout=ANSWER_SECONDS)
                self._connections.append(connection)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._selector.register(connection, selectors.EVENT_READ, number)
            self.runs()
        except OSError as error:
            self.close()
            raise Unable(f"Its server is unreachable: {error}") from error

    def runs(self) -> int:
        """Return the number of runs of the handler until now, after a request on every connection."""
        for connection in self._connections:
            connection.sendall(_GET_RUNS)
        responses = [_read(connection) for connection in self._connections]
        return int(responses[-1].rpartition(b"\r\n\r\n")[2])

    def settle(self) -> None:
        """Complete the keys that will be replayed."""
        for turn in range(REPLAY_KEYS):
            for number, connection in enumerate(self._connections):
                connection.sendall(SETTLED[number][turn])
            for response in [_read(connection) for connection in self._connections]:
                if not response.startswith(CREATED):
                    raise Unable(f"It responded with {_first_line(response).decode()}.")

    def drive(self, request: Callable[[int, int], bytes], seconds: float, marker: bytes | None = None) -> LoadResult:
        """Send requests on all connections for this time, each after the response to the last, and wait for the rest."""
        connections, selector = self._connections, self._selector
        partial = [b""] * len(connections)
        numbers = [0] * len(connections)
        first_lines: Counter[bytes] = Counter()
        marked, waiting = 0, len(connections)
        gc.collect()
        began = time.perf_counter()
        end = began + seconds
        for number, connection in enumerate(connections):
            connection.sendall(request(number, 0))
        while waiting:
            events = selector.select(ANSWER_SECONDS)
            if not events:
                raise Unable(f"It did not respond within {ANSWER_SECONDS:g} s.")
            now = time.perf_counter()
            for key, _ in events:
                number = key.data
                connection = connections[number]
                response = partial[number] + _receive(connection)
                if not is_whole(response):
                    partial[number] = response
                    continue
                partial[number] = b""
                numbers[number] += 1
                first_lines[_first_line(response)] += 1
                if marker is not None and marker in response.lower():
                    marked += 1
                if now < end:
                    connection.sendall(request(number, numbers[number]))
                else:
                    waiting -= 1
        return LoadResult(sum(numbers), time.perf_counter() - began, first_lines, marked)

    def close(self) -> None:
        self._selector.close()
        for connection in self._connections:
            connection.close()


def is_whole(response: bytes) -> bool:
    """Return whether the bytes are a complete response, by its Content-Length or its last chunk."""
    head, found, body = response.partition(b"\r\n\r\n")
    if not found:
        return False
    head = head.lower()
    _, found, rest = head.partition(b"\r\ncontent-length:")
    if found:
        return len(body) >= int(rest.partition(b"\r\n")[0])
    if b"\r\ntransfer-encoding: chunked" in head:
        return body.endswith(b"0\r\n\r\n")
    raise Unable("Its response has neither Content-Length nor chunks.")


def _read(connection: socket.socket) -> bytes:
    response = b""
    while not is_whole(response):
        response += _receive(connection)
    return response


def _receive(connection: socket.socket) -> bytes:
    try:
        received = connection.recv(65_536)
    except OSError as error:
        raise Unable(f"It did not respond: {error}.") from error
    if not received:
        raise Unable("It closed the connection.")
    return received


def _first_line(response: bytes) -> bytes:
    return response.partition(b"\r\n")[0]
