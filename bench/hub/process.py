"""Server processes of the load benchmark: a hub, and the bare routes. Both run the source of this tree."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from bench.peers.process import ROOT

# Far more than it takes, also on a busy machine.
START_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 60.0
BRAIN = "bench.hub.idle_brain:brain"
_READY = re.compile(rb"onceward: listening on http://\S+:(\d+)")


class HubProcess:
    """`onceward serve` with the idle brain, from the source tree `source`. The context must end with a clean stop.

    Entering the context does not wait until the hub is ready, so that several hubs start together; `port` does.
    """

    def __init__(self, data_dir: Path, *, database: str = "", workers: int = 1, source: Path = ROOT) -> None:
        self._folder = data_dir.parent
        self._command = [sys.executable, "-m", "onceward", "serve", "--port", "0", "--data-dir", str(data_dir)]
        self._command += ["--workers", str(workers), "--brain", BRAIN]
        self._command += ["--database", database] if database else []
        self._source = source
        # The hub logs every request. A file in memory takes the lines without a reader and without touching the disk.
        self._log = os.memfd_create("hub.log")
        self._port = 0

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            cwd=self._folder,
            env=_environment(self._source),
            # A group of its own, so that no worker is left over.
            start_new_session=True,
        )
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            if kind is None:
                self._process.terminate()
                if self._process.wait(STOP_SECONDS_MAX) != 0:
                    raise RuntimeError(f"the hub ended with code {self._process.returncode}:\n{self._tail()}")
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            os.close(self._log)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def port(self) -> int:
        deadline = time.monotonic() + START_SECONDS_MAX
        while not self._port:
            if found := _READY.search(os.pread(self._log, 65_536, 0)):
                self._port = int(found[1])
            elif time.monotonic() > deadline or self._process.poll() is not None:
                raise RuntimeError(f"the hub did not start:\n{self._tail()}")
            else:
                time.sleep(0.01)
        return self._port

    def _tail(self) -> str:
        size = os.fstat(self._log).st_size
        return os.pread(self._log, 10_000, max(0, size - 10_000)).decode(errors="replace")


class BareProcess:
    """The bare routes. As with `HubProcess`, `port` waits until they are ready."""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.hub.bare"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env=_environment(ROOT),
        )
        self._port = 0
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        # Closing its input ends it.
        self._process.__exit__(kind, error, at)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def port(self) -> int:
        if not self._port:
            output = self._process.stdout
            assert output is not None
            if not select.select([output], [], [], START_SECONDS_MAX)[0]:
                self._process.kill()
            self._port = json.loads(output.readline())["port"]
        return self._port


def _environment(source: Path) -> dict[str, str]:
    """Return the environment of this process, without settings of a hub, and with the source tree before all else."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("ONCEWARD_", "PROMETHEUS_"))}
    return {**own, "PYTHONPATH": os.pathsep.join(map(str, (source / "src", ROOT))), "PYTHONUNBUFFERED": "1"}
