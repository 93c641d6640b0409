"""Peers as contestants: their environment, created from pinned requirements, and a process for each."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from pathlib import Path

from bench.contest import Unable
from bench.load import Scenario

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = ROOT / ".venv-peers"
REQUIREMENTS = ROOT / "requirements" / "peers.txt"
# A peer that sends nothing for this long is stuck, and its row gets a dash.
ANSWER_SECONDS = 60.0


def make_environment() -> Path:
    """Create the peers' environment if its requirements changed, and return its Python. Raises `Unable` on failure."""
    python = ENVIRONMENT / "bin" / "python"
    stamp = ENVIRONMENT / ".installed"
    if stamp.exists() and stamp.read_text("utf-8") == REQUIREMENTS.read_text("utf-8"):
        return python
    print("bench: creating .venv-peers and installing the pinned requirements of the peers", file=sys.stderr)
    quietly = ("--quiet", "--disable-pip-version-check", "--require-hashes", "--no-deps")
    try:
        subprocess.run([sys.executable, "-m", "venv", "--clear", ENVIRONMENT], check=True, capture_output=True)
        install: list[str | Path] = [python, "-m", "pip", "install", *quietly, "-r", REQUIREMENTS]
        subprocess.run(install, check=True, capture_output=True, text=True)
    except subprocess.CalledProcessError as error:
        raise Unable(f"The peers could not be installed: {str(error.stderr).strip()[-200:]}") from error
    stamp.write_text(REQUIREMENTS.read_text("utf-8"), "utf-8")
    return python


class PeerProcess:
    """Process of a peer on one store. `warm` starts it; requests and responses are JSON lines."""

    def __init__(self, python: Path, name: str, module: str, url: str, *options: str) -> None:
        self.name = name
        self.version = ""
        self._command = [str(python), "-m", f"bench.peers.{module}", url, *options]
        self._process: subprocess.Popen[str] | None = None

    @property
    def pid(self) -> int:
        if self._process is None:
            raise Unable("Its process has ended.")
        return self._process.pid

    def warm(self) -> None:
        self.start()
        self._request({"do": "warm"})

    def start(self) -> None:
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        )
        self.version = str(self._read_response()["version"])

    def rate(self, scenario: Scenario, seconds: float) -> float:
        response = self._request(
            {"do": "rate", "mode": scenario.mode, "callers": scenario.callers, "seconds": float(seconds)}
        )
        rate = response["rate"]
        assert isinstance(rate, float)
        return rate

    def call(self, key: str) -> None:
        self._request({"do": "call", "key": key})

    def close(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        try:
            process.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()

    def _request(self, request: dict[str, object]) -> dict[str, object]:
        process = self._process
        if process is None or process.stdin is None:
            raise Unable("Its process has ended.")
        try:
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
        except BrokenPipeError:
            raise Unable("Its process has ended.") from None
        return self._read_response()

    def _read_response(self) -> dict[str, object]:
        process = self._process
        assert process is not None
        assert process.stdout is not None
        if not select.select([process.stdout], [], [], ANSWER_SECONDS)[0]:
            process.kill()
            self.close()
            raise Unable(f"It did not respond within {ANSWER_SECONDS:g} s.")
        line = process.stdout.readline()
        if not line:
            raise Unable("Its process has ended.")
        response: dict[str, object] = json.loads(line)
        if "error" in response:
            raise Unable(str(response["error"]))
        return response
