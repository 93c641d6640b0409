"""Workers as the tests hold them: give an order, wait for a report, kill, freeze, thaw."""

from __future__ import annotations

import itertools
import json
import os
import select
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from tests.faults.fork_server import ForkServer
from tests.faults.ledger_worker import append

from onceward import open_ledger
from onceward.ledger.terms import EffectClass

# Far beyond what any report takes on a busy machine: it ends a test that would hang.
REPORT_SECONDS_MAX = 60.0
END_SECONDS_MAX = 2.0


class Effect(NamedTuple):
    """One run of an effect, as counted outside of the worker."""

    key: str
    token: str
    version: int


class Effects:
    """The file to which every run of an effect adds a line."""

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
    """A running `ledger_worker.py`. Reports are read as they come; `read_report` waits for the next."""

    def __init__(self, fork_server: ForkServer, effects: Effects, machine: str = "") -> None:
        reads, orders = os.pipe()
        self._reports, writes = os.pipe()
        self._orders = os.fdopen(orders, "wb", buffering=0)
        self.pid = fork_server.fork([str(effects.path), machine], reads, writes)
        self._process = os.pidfd_open(self.pid)
        os.close(reads)
        os.close(writes)
        self._unread = b""

    def order(self, do: str, **values: object) -> None:
        self._orders.write(json.dumps({"do": do, **values}).encode() + b"\n")

    def go_on(self) -> None:
        """Let an effect that was ordered to pause return."""
        self._orders.write(b"\n")

    def read_report(self, seconds: float = REPORT_SECONDS_MAX) -> dict[str, Any]:
        """Return the next report; empty if the worker is gone."""
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
        report = self.read_report()
        assert report.get("at") == point, report
        return report

    def result(self) -> dict[str, Any]:
        """Return the next report that is a result: `{"key", "value"}`, `{"key", "error"}` or `{"done"}`."""
        report = self.read_report()
        while "at" in report:
            report = self.read_report()
        return report

    def kill(self) -> None:
        """Kill it, and wait until it is gone."""
        signal.pidfd_send_signal(self._process, signal.SIGKILL)
        assert self._ends_within(REPORT_SECONDS_MAX)

    def freeze(self) -> None:
        """Freeze it, and wait until none of its threads runs."""
        signal.pidfd_send_signal(self._process, signal.SIGSTOP)
        while any(state_of(thread) != "T" for thread in Path(f"/proc/{self.pid}/task").iterdir()):
            os.sched_yield()

    def thaw(self) -> None:
        signal.pidfd_send_signal(self._process, signal.SIGCONT)

    def close(self) -> None:
        """Let it end by itself, so that what it covered is counted; kill it if it cannot."""
        self._orders.close()
        if not self._ends_within(END_SECONDS_MAX):
            self.kill()
        os.close(self._process)
        os.close(self._reports)

    def _ends_within(self, seconds: float) -> bool:
        """A process's descriptor is readable once it has ended."""
        return bool(select.select([self._process], [], [], seconds)[0])


def state_of(thread: Path) -> str:
    """Return the letter that the kernel has for the state of a thread; T, stopped, also if it has just ended."""
    try:
        return (thread / "stat").read_text().rpartition(") ")[2][0]
    except (FileNotFoundError, ProcessLookupError):
        return "T"


class Caller:
    """This process as another caller. Its effects are counted like those of the workers."""

    def __init__(self, url: str, effects: Effects) -> None:
        self.ledger = open_ledger(url, wait_seconds=30.0)
        self._effects = effects
        self._tokens = itertools.count(1)

    def run(self, key: str, effect: EffectClass, wait_seconds: float | None = None) -> str:
        def happen() -> str:
            token = f"here.{next(self._tokens)}"
            append(self._effects.path, key, token)
            return token

        return self.ledger.blocking.run(key, happen, effect=effect, wait_seconds=wait_seconds)
