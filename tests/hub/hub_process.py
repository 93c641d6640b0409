"""A hub in a process of its own: `with running_hub(data_dir=…) as hub: … hub.url …`.

It is forked from a process that has imported everything, which saves a second. With `command=SERVE` it is started as a
user would start it.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.hub.hub_fork_server import ForkedHub, HubForkServer

ROOT = Path(__file__).parent.parent.parent
SERVE = (sys.executable, "-m", "onceward", "serve")
# Far more than it takes, also on a busy machine; a test that waits this long has failed.
START_SECONDS_MAX = 30.0
STOP_SECONDS_MAX = 40.0

_READY = re.compile(r"onceward: listening on (https?://\S+)")


class RunningHub:
    """`log_lines` are what it has printed so far, on both of its outputs."""

    def __init__(self, process: subprocess.Popen[str] | ForkedHub) -> None:
        self.process = process
        self.url = ""
        self._lines: list[str] = []
        self._more = threading.Condition()
        self._is_over = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def log_lines(self) -> list[str]:
        with self._more:
            return list(self._lines)

    def wait_for_line(self, pattern: str, seconds: float = START_SECONDS_MAX) -> re.Match[str]:
        """Wait for a line that matches, and return the match."""
        deadline = time.monotonic() + seconds
        with self._more:
            while True:
                for line in self._lines:
                    if found := re.search(pattern, line):
                        return found
                left = deadline - time.monotonic()
                if self._is_over or left <= 0:
                    output = "\n".join(self._lines)
                    raise AssertionError(f"no line with {pattern!r}; it said:\n{output}")
                self._more.wait(left)

    def stop(self) -> int:
        """Ask it to stop, as systems do, and wait; gives its exit code."""
        self.process.terminate()
        return self.wait()

    def wait(self, seconds: float = STOP_SECONDS_MAX) -> int:
        """Wait until it has ended by itself, and its output has been read."""
        code = self.process.wait(seconds)
        self._reader.join(seconds)
        return code

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._more:
                self._lines.append(line.rstrip("\n"))
                self._more.notify_all()
        with self._more:
            self._is_over = True
            self._more.notify_all()


@contextlib.contextmanager
def started_hub(
    *,
    data_dir: Path,
    args: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    command: Sequence[str] | None = None,
    cwd: Path | None = None,
) -> Iterator[RunningHub]:
    """The process, ready or not, as the leader of its group; killed at the end if it still runs."""
    port = () if "--port" in args else ("--port", "0")
    arguments = ["--data-dir", str(data_dir), *port, *args]
    with _started(arguments, environment(env), cwd or data_dir.parent, command) as process:
        hub = RunningHub(process)
        try:
            yield hub
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            hub.wait()


@contextlib.contextmanager
def running_hub(
    *,
    data_dir: Path,
    args: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    command: Sequence[str] | None = None,
    cwd: Path | None = None,
) -> Iterator[RunningHub]:
    """A hub that is ready. At the end it is asked to stop, unless the test has ended it, and must do so."""
    with started_hub(data_dir=data_dir, args=args, env=env, command=command, cwd=cwd) as hub:
        hub.url = hub.wait_for_line(_READY.pattern)[1]
        yield hub
        if hub.process.poll() is None:
            code = hub.stop()
            output = "\n".join(hub.log_lines())
            assert code == 0, f"the hub ended with code {code}:\n{output}"


def _started(
    arguments: list[str], env: Mapping[str, str], folder: Path, command: Sequence[str] | None
) -> subprocess.Popen[str] | ForkedHub:
    """Start it in its own process group, so that no worker is left over."""
    if command is None:
        return _fork_server().start(["serve", *arguments], env, folder)
    return subprocess.Popen(
        [*command, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=folder,
        env=env,
        start_new_session=True,
    )


@functools.cache
def _fork_server() -> HubForkServer:
    """The process that forks hubs, started when the first test needs it."""
    server = HubForkServer(environment())
    atexit.register(server.close)
    return server


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of this process, without the settings of a hub."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("ONCEWARD_", "PROMETHEUS_"))}
    return {**own, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", **(more or {})}
