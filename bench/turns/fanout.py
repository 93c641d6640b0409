"""Delivery of the stream of one turn to all clients that follow it, from a separate hub process.

    python -m bench.turns.fanout [--clients 50] [--deltas 500] [--rounds 3] [--database URL]

The brain sends one delta after the other. Each is stored before a client gets it. All clients are connected before the
first delta, and each follows `/turns/{id}/events` over its own connection. Clients only count: each has to get every delta
once, and then `done`.
"""

from __future__ import annotations

import argparse
import http.client
import itertools
import json
import selectors
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.peers.process import ROOT

_DELTA = b"event: delta"
_DONE = b"event: done"
# A stream that sends nothing for this long is broken.
_SECONDS_MAX = 60.0


@dataclass(frozen=True, slots=True)
class Followed:
    """Figures for a number of clients, the medians of the rounds. Seconds start with the first delta at any client."""

    clients: int
    deltas: int
    fastest_seconds: float
    slowest_seconds: float

    @property
    def deliveries_per_second(self) -> float:
        return self.clients * self.deltas / self.slowest_seconds


def measure(folder: Path, clients: Sequence[int], deltas: int, rounds: int, database: str = "") -> list[Followed]:
    """Return one row for each number of clients. Each round measures all of them in turn."""
    numbers = itertools.count()
    with _hub(folder, database) as port:
        # Warm up: the first turn of a process pays for one-time initialization.
        _turn(port, folder / "go-first", 1, 1)
        times = [[_turn(port, folder / f"go-{next(numbers)}", each, deltas) for each in clients] for _ in range(rounds)]
    return [
        Followed(each, deltas, *(statistics.median(side) for side in zip(*column, strict=True)))
        for each, column in zip(clients, zip(*times, strict=True), strict=True)
    ]


@contextmanager
def _hub(folder: Path, database: str) -> Iterator[int]:
    command = [sys.executable, "-m", "onceward", "serve", "--port", "0", "--data-dir", str(folder / "hub")]
    command += ["--brain", "bench.turns.speaker:brain", *(("--database", database) if database else ())]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=ROOT) as process:
        output = process.stdout
        assert output is not None
        try:
            line = next((line for line in output if "listening on" in line), None)
            if line is None:
                raise RuntimeError("the hub exited before it was listening")
            yield int(line.split("listening on", 1)[1].split()[0].rstrip("/").rpartition(":")[2])
        finally:
            process.send_signal(signal.SIGTERM)
            output.read()
            process.wait(_SECONDS_MAX)


def _turn(port: int, go: Path, clients: int, deltas: int) -> tuple[float, float]:
    """Run a turn and return the seconds until the first and until the last client has the whole stream."""
    turn_id = _begin(port, {"go": str(go), "deltas": deltas})
    followers = [_follow(port, turn_id) for _ in range(clients)]
    try:
        go.touch()
        return _count(followers, deltas)
    finally:
        for follower in followers:
            follower.close()


def _begin(port: int, order: dict[str, object]) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_SECONDS_MAX)
    message = {"message": json.dumps(order), "session_key": str(order["go"])}
    connection.request("POST", "/chat", json.dumps(message), {"Content-Type": "application/json"})
    response = connection.getresponse()
    body = json.loads(response.read())
    connection.close()
    if response.status not in {200, 202}:
        raise RuntimeError(f"the hub responded with {response.status}: {body}")
    return str(body["turn_id"])


def _follow(port: int, turn_id: str) -> socket.socket:
    one = socket.create_connection(("127.0.0.1", port), timeout=_SECONDS_MAX)
    one.sendall(f"GET /turns/{turn_id}/events HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
    received = b""
    while b"retry:" not in received:
        data = one.recv(4096)
        if not data:
            raise RuntimeError(f"the hub did not start a stream; it sent {received[:200]!r}")
        received += data
    return one


def _count(followers: Sequence[socket.socket], deltas: int) -> tuple[float, float]:
    rests = dict.fromkeys(followers, b"")
    counts = dict.fromkeys(followers, 0)
    first, ends = 0.0, list[float]()
    with selectors.DefaultSelector() as selector:
        for one in followers:
            selector.register(one, selectors.EVENT_READ)
        while len(ends) < len(followers):
            ready = selector.select(_SECONDS_MAX)
            if not ready:
                raise RuntimeError(f"no delta within {_SECONDS_MAX:g} s")
            for key, _ in ready:
                follower = key.fileobj
                assert isinstance(follower, socket.socket)
                data = follower.recv(1 << 18)
                whole = rests[follower] + data
                counts[follower] += whole.count(_DELTA)
                first = first or time.perf_counter()
                # A mark that is split between two reads is counted with the second, and no delta is counted twice.
                rests[follower] = whole[-(len(_DELTA) - 1) :]
                if _DONE in whole or not data:
                    ends.append(time.perf_counter() - first)
                    selector.unregister(follower)
    if set(counts.values()) != {deltas}:
        raise RuntimeError(f"{deltas} deltas were sent; clients got {sorted(set(counts.values()))}")
    return ends[0], ends[-1]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--clients", type=int, default=50)
    options.add_argument("--deltas", type=int, default=500)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--database", default="")
    given = options.parse_args()
    (ROOT / "build").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=ROOT / "build", prefix="bench-") as folder:
        for row in measure(Path(folder), (1, given.clients), given.deltas, given.rounds, given.database):
            print(row, f"{row.deliveries_per_second:,.0f} deliveries/s")


if __name__ == "__main__":
    main()
