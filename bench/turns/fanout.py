"""How fast the stream of one turn reaches everybody who follows it, from a hub process of its own.

    python -m bench.turns.fanout [--clients 50] [--deltas 500] [--rounds 3] [--database URL]

The brain says one delta after the other, each stored before anybody gets it. All clients wait for the first one before
it begins, and each follows `/turns/{id}/events` over a connection of its own. They only count: every client has to get
every delta once, and then `done`.
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
# A stream that says nothing for so long is broken.
_SECONDS_MAX = 60.0


@dataclass(frozen=True, slots=True)
class Followed:
    """What so many clients saw of one turn, the medians of the rounds. Seconds begin with the first delta anybody has."""

    clients: int
    deltas: int
    fastest_seconds: float
    slowest_seconds: float

    @property
    def deliveries_per_second(self) -> float:
        return self.clients * self.deltas / self.slowest_seconds


def measure(folder: Path, clients: Sequence[int], deltas: int, rounds: int, database: str = "") -> list[Followed]:
    """One row for each number of clients; they take turns, round after round."""
    numbers = itertools.count()
    with _hub(folder, database) as port:
        # The first turn of a process pays for what is made once.
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
                raise RuntimeError("the hub ended before it listened")
            yield int(line.split("listening on", 1)[1].split()[0].rstrip("/").rpartition(":")[2])
        finally:
            process.send_signal(signal.SIGTERM)
            output.read()
            process.wait(_SECONDS_MAX)


def _turn(port: int, go: Path, clients: int, deltas: int) -> tuple[float, float]:
    """When the first and when the last client has the whole stream."""
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
    answer = connection.getresponse()
    told = json.loads(answer.read())
    connection.close()
    if answer.status not in {200, 202}:
        raise RuntimeError(f"the hub answered {answer.status}: {told}")
    return str(told["turn_id"])


def _follow(port: int, turn_id: str) -> socket.socket:
    one = socket.create_connection(("127.0.0.1", port), timeout=_SECONDS_MAX)
    one.sendall(f"GET /turns/{turn_id}/events HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
    heard = b""
    while b"retry:" not in heard:
        data = one.recv(4096)
        if not data:
            raise RuntimeError(f"no stream: {heard[:200]!r}")
        heard += data
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
                # A mark that is cut in two is counted with its second half, and no delta is counted twice.
                rests[follower] = whole[-(len(_DELTA) - 1) :]
                if _DONE in whole or not data:
                    ends.append(time.perf_counter() - first)
                    selector.unregister(follower)
    if set(counts.values()) != {deltas}:
        raise RuntimeError(f"{deltas} deltas were said; clients got {sorted(set(counts.values()))}")
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
