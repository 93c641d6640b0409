"""Keep-alive HTTP/1.1 load from one thread: ready bytes, one request at a time on each connection.

It uses plain sockets because it shares a small machine with the server that it measures. While a FastAPI route runs, it
is idle most of the time.
"""

from __future__ import annotations

import gc
import selectors
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.contest import Unable

# A server that sends nothing for this long is stuck.
ANSWER_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class Driven:
    """One run: the seconds of each request, from sending it to its response, and the seconds of the whole run."""

    latencies: list[float]
    seconds: float

    @property
    def requests(self) -> int:
        return len(self.latencies)

    @property
    def rate(self) -> float:
        return self.requests / self.seconds


class Connections:
    """Open connections that were used once, so that accepting them is not part of the measurement."""

    def __init__(self, port: int, count: int, first: bytes) -> None:
        self._connections: list[socket.socket] = []
        self._selector = selectors.DefaultSelector()
        try:
            for number in range(count):
                connection = socket.create_connection(("127.0.0.1", port), timeout=ANSWER_SECONDS)
                self._connections.append(connection)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._selector.register(connection, selectors.EVENT_READ, number)
            self.send_all([first] * count)
        except OSError as error:
            self.close()
            raise Unable(f"Its server is unreachable: {error}") from error

    def send_all(self, requests: Sequence[bytes]) -> list[bytes]:
        """Send one request on each connection, and return the responses."""
        for connection, request in zip(self._connections, requests, strict=True):
            connection.sendall(request)
        return [_read(connection) for connection in self._connections]

    def drive(
        self, request: Callable[[int, int], bytes], seconds: float, check: Callable[[int, bytes], object]
    ) -> Driven:
        """Send requests on all connections for this time, each after the response to the last, and wait for the rest.

        `request` gets the number of the connection and of its request; `check` gets the connection and the response.
        """
        connections, selector = self._connections, self._selector
        partial = [b""] * len(connections)
        numbers, sent_at = [0] * len(connections), [0.0] * len(connections)
        latencies: list[float] = []
        waiting = len(connections)
        clock = time.perf_counter
        gc.collect()
        began = clock()
        end = began + seconds
        for number, connection in enumerate(connections):
            data = request(number, 0)
            sent_at[number] = clock()
            connection.sendall(data)
        while waiting:
            events = selector.select(ANSWER_SECONDS)
            if not events:
                raise Unable(f"It did not respond within {ANSWER_SECONDS:g} s.")
            now = clock()
            for key, _ in events:
                number = key.data
                connection = connections[number]
                response = partial[number] + _receive(connection)
                if not is_whole(response):
                    partial[number] = response
                    continue
                partial[number] = b""
                numbers[number] += 1
                latencies.append(now - sent_at[number])
                check(number, response)
                if now < end:
                    data = request(number, numbers[number])
                    sent_at[number] = clock()
                    connection.sendall(data)
                else:
                    waiting -= 1
        return Driven(latencies, clock() - began)

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


def first_line(response: bytes) -> bytes:
    return response.partition(b"\r\n")[0]


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
