"""Requests of the middleware's benchmark, and the tally of their responses."""

from __future__ import annotations

import enum
import random
from collections import Counter
from collections.abc import Callable

from bench.connections import Connections, first_line
from bench.contest import Unable

CONNECTIONS_MAX = 64
# Keys that each connection replays in turn.
REPLAY_KEYS = 2

CREATED = b"HTTP/1.1 201 Created"
_BODY = b'{"amount":10,"currency":"EUR"}'
_HEAD = (
    b"POST /payments HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: */*\r\nContent-Type: application/json\r\n"
    b"Authorization: Bearer 5d41402abc4b2a76b9719d911017c592\r\nContent-Length: %d\r\n" % len(_BODY)
)
_NO_KEY = _HEAD + b"\r\n" + _BODY
GET_RUNS = b"GET /runs HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


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


class Tally:
    """Responses by status line, and the number of those that are marked as replays."""

    def __init__(self, marker: bytes | None) -> None:
        self.first_lines: Counter[bytes] = Counter()
        self.marked = 0
        self._marker = marker

    def __call__(self, _connection: int, response: bytes) -> None:
        self.first_lines[first_line(response)] += 1
        if self._marker is not None and self._marker in response.lower():
            self.marked += 1


def connect(port: int, count: int) -> Connections:
    return Connections(port, count, GET_RUNS)


def runs(connections: Connections, count: int) -> int:
    """Return the number of runs of the handler until now, after a request on every connection."""
    return int(connections.send_all([GET_RUNS] * count)[-1].rpartition(b"\r\n\r\n")[2])


def settle(connections: Connections, count: int) -> None:
    """Complete the keys that will be replayed."""
    for turn in range(REPLAY_KEYS):
        for response in connections.send_all([SETTLED[number][turn] for number in range(count)]):
            if not response.startswith(CREATED):
                raise Unable(f"It responded with {first_line(response).decode()}.")
