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
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.peers.process import ROOT

# Far more than it takes, also on a busy machine.
START_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 60.0
BRAIN = "bench.hub.idle_brain:brain"
_READY = re.compile(rb"onceward: listening on http://\S+:(\d+)")


@dataclass(frozen=True, slots=True)
class Served:
    """A running server: its port and the process id of its first process."""

    port: int
    pid: int


@contextlib.contextmanager
def running_hub(data_dir: Path, *, database: str = "", workers: int = 1, source: Path = ROOT) -> Iterator[Served]:
    """Run `onceward serve` with the idle brain, from the source tree `source`. It must stop by itself at the end."""
    command = [sys.executable, "-m", "onceward", "serve", "--port", "0", "--data-dir", str(data_dir)]
    command += ["--workers", str(workers), "--brain", BRAIN, *(["--database", database] if database else [])]
    # The hub logs every request. A file in memory takes the lines without a reader and without touching the disk.
    log = os.memfd_create("hub.log")
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        cwd=data_dir.parent,
        env=_environment(source),
        start_new_session=True,
    )
    try:
        yield Served(_port_of(process, log), process.pid)
        process.terminate()
        if process.wait(STOP_SECONDS_MAX) != 0:
            raise RuntimeError(f"the hub ended with code {process.returncode}:\n{_tail(log)}")
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        os.close(log)


@contextlib.contextmanager
def running_bare() -> Iterator[Served]:
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.hub.bare"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env=_environment(ROOT),
    )
    with process:
        assert process.stdout is not None
        if not select.select([process.stdout], [], [], START_SECONDS_MAX)[0]:
            process.kill()
        yield Served(json.loads(process.stdout.readline())["port"], process.pid)
        # Leaving the context closes its input, which ends it.


def _environment(source: Path) -> dict[str, str]:
    """Return the environment of this process, without settings of a hub, and with the source tree before all else."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("ONCEWARD_", "PROMETHEUS_"))}
    return {**own, "PYTHONPATH": os.pathsep.join(map(str, (source / "src", ROOT))), "PYTHONUNBUFFERED": "1"}


def _port_of(process: subprocess.Popen[bytes], log: int) -> int:
    deadline = time.monotonic() + START_SECONDS_MAX
    while time.monotonic() < deadline and process.poll() is None:
        if found := _READY.search(os.pread(log, 65_536, 0)):
            return int(found[1])
        time.sleep(0.01)
    raise RuntimeError(f"the hub did not start:\n{_tail(log)}")


def _tail(log: int) -> str:
    size = os.fstat(log).st_size
    return os.pread(log, 10_000, max(0, size - 10_000)).decode(errors="replace")
