"""Server process of a contestant, and the checks of its responses."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.connections import ANSWER_SECONDS
from bench.contest import Unable
from bench.http.load import CONNECTIONS_MAX, CREATED, Mode, Tally, connect, request_of, runs, settle
from bench.peers.process import ROOT

REPLAYED = b"\r\nidempotent-replayed: true"


@dataclass(frozen=True, slots=True)
class Entry:
    """A contestant.

    Attributes:
        name: Name of its row.
        make: Its application factory as `module:function`.
        package: The package whose version is shown.
        marker: The header that marks a replay, if it sends one.
        cannot: Unsupported modes, with the reason.
        remembers: Whether it stores responses. The bare route runs its handler every time.
    """

    name: str
    make: str
    package: str = "fastapi"
    marker: bytes | None = None
    cannot: dict[Mode, str] = field(default_factory=dict)
    remembers: bool = True


class ServerProcess:
    """Server of an entry on one store. Only `start` and `rate` raise `Unable`."""

    def __init__(
        self, entry: Entry, url: str, python: Path | None = None, *, connections: int = CONNECTIONS_MAX
    ) -> None:
        self.entry = entry
        self._connections = connections
        self.version = ""
        self.server: dict[str, str] = {}
        self._command = [str(python or sys.executable), "-m", "bench.http.serve", entry.make, entry.package, url]
        self._process: subprocess.Popen[str] | None = None
        self._port = 0

    def spawn(self) -> None:
        """Start the process without waiting; `start` waits. Many processes start faster together than one by one."""
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        )

    def start(self) -> None:
        """Wait until the server accepts requests, and settle the keys that will be replayed."""
        started = self._read_started()
        self._port, self.version, self.server = started["port"], started["version"], started["server"]
        with closing(connect(self._port, self._connections)) as connections:
            settle(connections, self._connections)

    def rate(self, mode: Mode, seconds: float) -> float:
        """Return the requests per second. Checks every status, the marks of replays and the runs of the handler."""
        if mode in self.entry.cannot:
            raise Unable(self.entry.cannot[mode])
        marker = self.entry.marker
        replays = self.entry.remembers and mode in {Mode.REPLAY, Mode.REPLAY_ONE}
        tally = Tally(marker)
        with closing(connect(self._port, self._connections)) as connections:
            before = runs(connections, self._connections)
            result = connections.drive(request_of(mode), seconds, tally)
            ran = runs(connections, self._connections) - before
        if set(tally.first_lines) != {CREATED}:
            raise Unable(f"It responded with {dict(tally.first_lines)}.")
        if ran != (0 if replays else result.requests):
            raise Unable(f"{result.requests} requests ({mode}) ran the handler {ran} times.")
        if marker is not None and tally.marked != (result.requests if replays else 0):
            raise Unable(f"{tally.marked} of {result.requests} responses ({mode}) were marked as replays.")
        return result.rate

    def end(self) -> None:
        """Ask the process to exit; `close` waits for it."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()

    def close(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()

    def _read_started(self) -> dict[str, Any]:
        process = self._process
        assert process is not None
        assert process.stdout is not None
        if not select.select([process.stdout], [], [], ANSWER_SECONDS)[0]:
            raise Unable(f"It did not start within {ANSWER_SECONDS:g} s.")
        line = process.stdout.readline()
        if not line:
            raise Unable("Its process has ended.")
        started: dict[str, Any] = json.loads(line)
        if "error" in started:
            raise Unable(str(started["error"]))
        return started
