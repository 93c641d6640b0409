"""The peers as contestants: their environment, made once from pinned requirements, and a process for each."""

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
# A peer that says nothing for so long is stuck; its row gets a dash.
ANSWER_SECONDS = 60.0


def make_environment() -> Path:
    """The Python of the peers' environment, made anew when the requirements changed. `Unable` when it cannot be."""
    python = ENVIRONMENT / "bin" / "python"
    stamp = ENVIRONMENT / ".installed"
    if stamp.exists() and stamp.read_text("utf-8") == REQUIREMENTS.read_text("utf-8"):
        return python
    print("bench: making .venv-peers and installing the peers' pinned requirements", file=sys.stderr)
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
    """A peer on one store. It is started by `warm` and asked line by line."""

    def __init__(self, python: Path, name: str, module: str, url: str, *options: str) -> None:
        self.name = name
        self.version = ""
        self._command = [str(python), "-m", f"bench.peers.{module}", url, *options]
        self._process: subprocess.Popen[str] | None = None

    def warm(self) -> None:
        self.start()
        self._ask({"do": "warm"})

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
        self.version = str(self._listen()["version"])

    def rate(self, scenario: Scenario, seconds: float) -> float:
        answer = self._ask(
            {"do": "rate", "mode": scenario.mode, "callers": scenario.callers, "seconds": float(seconds)}
        )
        rate = answer["rate"]
        assert isinstance(rate, float)
        return rate

    def call(self, key: str) -> None:
        self._ask({"do": "call", "key": key})

    def close(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        try:
            process.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()

    def _ask(self, question: dict[str, object]) -> dict[str, object]:
        process = self._process
        if process is None or process.stdin is None:
            raise Unable("Its process has ended.")
        try:
            process.stdin.write(json.dumps(question) + "\n")
            process.stdin.flush()
        except BrokenPipeError:
            raise Unable("Its process has ended.") from None
        return self._listen()

    def _listen(self) -> dict[str, object]:
        process = self._process
        assert process is not None
        assert process.stdout is not None
        if not select.select([process.stdout], [], [], ANSWER_SECONDS)[0]:
            process.kill()
            self.close()
            raise Unable(f"No answer within {ANSWER_SECONDS:g} s.")
        line = process.stdout.readline()
        if not line:
            raise Unable("Its process has ended.")
        answer: dict[str, object] = json.loads(line)
        if "error" in answer:
            raise Unable(str(answer["error"]))
        return answer
