"""Workers as the tests hold them: give an order, wait for a report, kill, freeze, thaw."""

from __future__ import annotations

import itertools
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from tests.system.worker import append

from onceward import open_ledger

REPOSITORY = Path(__file__).parents[2]
# Far beyond what any report takes on a busy machine: it ends a test that would hang.
REPORT_SECONDS_MAX = 60.0
END_SECONDS_MAX = 2.0


class Effect(NamedTuple):
    """One run of an effect, as it was counted outside."""

    key: str
    token: str
    version: int


class Effects:
    """The file outside that every run of an effect adds a line to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    def all(self) -> list[Effect]:
        rows = [line.rsplit(" ", 2) for line in self.path.read_text().splitlines()]
        return [Effect(key, token, int(version)) for key, token, version in rows]

    def of(self, key: str) -> list[Effect]:
        return [effect for effect in self.all() if effect.key == key]

    def counts(self) -> Counter[str]:
        return Counter(effect.key for effect in self.all())


class WorkerProcess:
    """A running `worker.py`. Reports are read as they come; `hear` waits for the next."""

    def __init__(self, effects: Effects, machine: str = "") -> None:
        command = [sys.executable, "-m", "tests.system.worker", str(effects.path), *([machine] if machine else [])]
        self._process = subprocess.Popen(command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._orders = self._process.stdin
        self._reports = os.dup(self._process.stdout.fileno())
        self._process.stdout.close()
        self._unread = b""

    @property
    def pid(self) -> int:
        return self._process.pid

    def order(self, do: str, **values: object) -> None:
        self._orders.write(json.dumps({"do": do, **values}).encode() + b"\n")
        self._orders.flush()

    def go_on(self) -> None:
        """Let an effect that was ordered to pause return."""
        self._orders.write(b"\n")
        self._orders.flush()

    def hear(self, seconds: float = REPORT_SECONDS_MAX) -> dict[str, Any]:
        """The next report; empty when the worker is gone."""
        deadline = time.monotonic() + seconds
        while b"\n" not in self._unread:
            readable, _, _ = select.select([self._reports], [], [], max(0.0, deadline - time.monotonic()))
            if not readable:
                raise TimeoutError(f"worker {self.pid} said nothing for {seconds:g} s")
            data = os.read(self._reports, 65536)
            if not data:
                return {}
            self._unread += data
        line, _, self._unread = self._unread.partition(b"\n")
        report: dict[str, Any] = json.loads(line)
        return report

    def reach(self, point: str) -> dict[str, Any]:
        """Wait until the worker is at a named point."""
        report = self.hear()
        assert report.get("at") == point, report
        return report

    def answer(self) -> dict[str, Any]:
        """The next report that is not about a point on the way: `{"key", "value"}`, `{"key", "error"}` or `{"done"}`."""
        report = self.hear()
        while "at" in report:
            report = self.hear()
        return report

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def freeze(self) -> None:
        """Returns when it no longer moves."""
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOWAIT)

    def thaw(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        """Let it end by itself, so that what it covered is counted; kill it if it cannot."""
        with suppress(BrokenPipeError):
            self._orders.close()
        try:
            self._process.wait(END_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self.kill()
        os.close(self._reports)


class Caller:
    """This process as one more caller. Its runs of an effect are counted outside like those of the workers."""

    def __init__(self, url: str, effects: Effects) -> None:
        self.ledger = open_ledger(url, wait_seconds=30.0)
        self._effects = effects
        self._tokens = itertools.count(1)

    def run(self, key: str, effect: str, wait_seconds: float | None = None) -> str:
        def happen() -> str:
            token = f"here.{next(self._tokens)}"
            append(self._effects.path, key, token)
            return token

        return self.ledger.blocking.run(key, happen, effect=effect, wait_seconds=wait_seconds)
