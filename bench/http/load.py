"""Keep-alive HTTP/1.1 load from one thread: prebuilt bytes, one request at a time on each connection.

Written on bare sockets because it shares a small machine with the server it measures. It is idle most
of the time that a FastAPI route takes to answer.
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
# Each connection replays so many keys of its own in turn.
REPLAY_KEYS = 2
# A server that says nothing for so long is stuck; its row gets a dash.
ANSWER_SECONDS = 15.0

CREATED = b"HTTP/1.1 201 Created"
_BODY = b'{"amount":10,"currency":"EUR"}'
_HEAD = (
    b"POST /payments HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: */*\r\nContent-Type: application/json\r\n"
    b"Authorization: Bearer 5d41402abc4b2a76b9719d911017c592\r\nContent-Length: %d\r\n" % len(_BODY)
)
_NO_KEY = _HEAD + b"\r\n" + _BODY
_ASK_RUNS = b"GET /runs HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


class Mode(enum.StrEnum):
    FRESH = "fresh"
    REPLAY = "replay"
    REPLAY_ONE = "replay, one key"
    NO_KEY = "no key"


def keyed(key: bytes) -> bytes:
    return b"%bIdempotency-Key: %b\r\n\r\n%b" % (_HEAD, key, _BODY)


SETTLED = [[keyed(b"replay-%d-%d" % (lane, turn)) for turn in range(REPLAY_KEYS)] for lane in range(CONNECTIONS_MAX)]
_ONE = SETTLED[0][0]


def request_of(mode: Mode) -> Callable[[int, int], bytes]:
    """The n-th request of a connection: fresh keys are as random as those of real clients."""
    match mode:
        case Mode.FRESH:
            return lambda _lane, _number: keyed(b"%032x" % random.getrandbits(128))
        case Mode.REPLAY:
            return lambda lane, number: SETTLED[lane][number % REPLAY_KEYS]
        case Mode.REPLAY_ONE:
            return lambda _lane, _number: _ONE
        case Mode.NO_KEY:
            return lambda _lane, _number: _NO_KEY


@dataclass(frozen=True, slots=True)
class Tally:
    """`first_lines` and `marked` count the answers by their status line, and those that call themselves replays."""

    requests: int
    seconds: float
    first_lines: Counter[bytes]
    marked: int

    @property
    def rate(self) -> float:
        return self.requests / self.seconds


class Lanes:
    """Connections that are open and were used once, so that nobody is measured while accepting them."""

    def __init__(self, port: int, count: int) -> None:
        self._lanes: list[socket.socket] = []
        self._chooser = selectors.DefaultSelector()
        try:
            for number in range(count):
                lane = socket.create_connection(("127.0.0.1", port), timeout=ANSWER_SECONDS)
                self._lanes.append(lane)
                lane.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._chooser.register(lane, selectors.EVENT_READ, number)
            self.runs()
        except OSError as error:
            self.close()
            raise Unable(f"Its server cannot be reached: {error}") from error

    def runs(self) -> int:
        """How often the handler ran until now, asked on every connection."""
        for lane in self._lanes:
            lane.sendall(_ASK_RUNS)
        answers = [_read(lane) for lane in self._lanes]
        return int(answers[-1].rpartition(b"\r\n\r\n")[2])

    def settle(self) -> None:
        """Complete the keys that will be replayed."""
        for turn in range(REPLAY_KEYS):
            for number, lane in enumerate(self._lanes):
                lane.sendall(SETTLED[number][turn])
            for answer in [_read(lane) for lane in self._lanes]:
                if not answer.startswith(CREATED):
                    raise Unable(f"It answered {_first_line(answer).decode()}.")

    def drive(self, request: Callable[[int, int], bytes], seconds: float, marker: bytes | None = None) -> Tally:
        """As many requests as the server answers in this time; the last of each connection is waited for."""
        lanes, chooser = self._lanes, self._chooser
        partial = [b""] * len(lanes)
        numbers = [0] * len(lanes)
        first_lines: Counter[bytes] = Counter()
        marked, waiting = 0, len(lanes)
        gc.collect()
        began = time.perf_counter()
        end = began + seconds
        for number, lane in enumerate(lanes):
            lane.sendall(request(number, 0))
        while waiting:
            events = chooser.select(ANSWER_SECONDS)
            if not events:
                raise Unable(f"No answer within {ANSWER_SECONDS:g} s.")
            now = time.perf_counter()
            for key, _ in events:
                number = key.data
                lane = lanes[number]
                answer = partial[number] + _receive(lane)
                if not is_whole(answer):
                    partial[number] = answer
                    continue
                partial[number] = b""
                numbers[number] += 1
                first_lines[_first_line(answer)] += 1
                if marker is not None and marker in answer.lower():
                    marked += 1
                if now < end:
                    lane.sendall(request(number, numbers[number]))
                else:
                    waiting -= 1
        return Tally(sum(numbers), time.perf_counter() - began, first_lines, marked)

    def close(self) -> None:
        self._chooser.close()
        for lane in self._lanes:
            lane.close()


def is_whole(answer: bytes) -> bool:
    """Whether these bytes hold an answer to its end, by its length or by its last chunk."""
    head, found, body = answer.partition(b"\r\n\r\n")
    if not found:
        return False
    head = head.lower()
    _, found, rest = head.partition(b"\r\ncontent-length:")
    if found:
        return len(body) >= int(rest.partition(b"\r\n")[0])
    if b"\r\ntransfer-encoding: chunked" in head:
        return body.endswith(b"0\r\n\r\n")
    raise Unable("It answered without a length.")


def _read(lane: socket.socket) -> bytes:
    answer = b""
    while not is_whole(answer):
        answer += _receive(lane)
    return answer


def _receive(lane: socket.socket) -> bytes:
    try:
        received = lane.recv(65_536)
    except OSError as error:
        raise Unable(f"No answer: {error}.") from error
    if not received:
        raise Unable("It closed the connection.")
    return received


def _first_line(answer: bytes) -> bytes:
    return answer.partition(b"\r\n")[0]
