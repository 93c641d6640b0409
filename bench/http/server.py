"""A contestant as a server in a process of its own, and the checks that its answers are right."""

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

from bench.contest import Unable
from bench.http.load import ANSWER_SECONDS, CONNECTIONS_MAX, CREATED, Lanes, Mode, request_of
from bench.peers.process import ROOT

REPLAYED = b"\r\nidempotent-replayed: true"


@dataclass(frozen=True, slots=True)
class Entry:
    """Who competes: `make` as `module:function`, the package whose version is shown, how it marks a replay if it does,
    and the modes it cannot do, with the reason.
    """

    name: str
    make: str
    package: str = "fastapi"
    marker: bytes | None = None
    cannot: dict[Mode, str] = field(default_factory=dict)
    # Whether it keeps what it has seen; the bare route runs its handler every time.
    remembers: bool = True


class ServerProcess:
    """An entry on one store. `start` and `rate`, and only they, raise `Unable`."""

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
        """Begin to start; `start` waits for it. Many start together faster than one after the other."""
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
        """Until it answers, with the keys settled that will be replayed."""
        said = self._listen()
        self._port, self.version, self.server = said["port"], said["version"], said["server"]
        with closing(Lanes(self._port, self._connections)) as lanes:
            lanes.settle()

    def rate(self, mode: Mode, seconds: float) -> float:
        """Requests per second. Every status, every replay's mark and the handler's runs are checked."""
        if mode in self.entry.cannot:
            raise Unable(self.entry.cannot[mode])
        marker = self.entry.marker
        replays = self.entry.remembers and mode in {Mode.REPLAY, Mode.REPLAY_ONE}
        with closing(Lanes(self._port, self._connections)) as lanes:
            before = lanes.runs()
            tally = lanes.drive(request_of(mode), seconds, marker)
            ran = lanes.runs() - before
        if set(tally.first_lines) != {CREATED}:
            raise Unable(f"It answered {dict(tally.first_lines)}.")
        if ran != (0 if replays else tally.requests):
            raise Unable(f"{tally.requests} requests ({mode}) ran the handler {ran} times.")
        if marker is not None and tally.marked != (tally.requests if replays else 0):
            raise Unable(f"{tally.marked} of {tally.requests} answers ({mode}) were marked as replays.")
        return tally.rate

    def end(self) -> None:
        """Begin to end; `close` waits for it."""
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

    def _listen(self) -> dict[str, Any]:
        process = self._process
        assert process is not None
        assert process.stdout is not None
        if not select.select([process.stdout], [], [], ANSWER_SECONDS)[0]:
            raise Unable(f"It did not start within {ANSWER_SECONDS:g} s.")
        line = process.stdout.readline()
        if not line:
            raise Unable("Its process has ended.")
        said: dict[str, Any] = json.loads(line)
        if "error" in said:
            raise Unable(str(said["error"]))
        return said
