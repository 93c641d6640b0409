"""A command that serves a console in a process of its own, as a user starts it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.hub.hub_process import environment

_READY = re.compile(r"on (http://127\.0\.0\.1:\d+)/console/")
# Generous: it only decides when the test gives up.
_SECONDS_MAX = 120


@contextmanager
def serving(*arguments: str, cwd: Path, env: Mapping[str, str] | None = None) -> Iterator[tuple[str, list[str]]]:
    """The command, until it serves; gives the URL and its output so far. It must end in order."""
    command = [sys.executable, "-m", "onceward", *arguments]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=cwd,
        env=environment(env),
    ) as process:
        assert process.stdout is not None
        lines: list[str] = []
        with _killed_if_late(process):
            for line in process.stdout:
                lines.append(line)
                if found := _READY.search(line):
                    break
            else:
                raise AssertionError("".join(lines))
        try:
            yield found[1], lines
        finally:
            os.kill(process.pid, signal.SIGTERM)
            with _killed_if_late(process):
                process.stdout.read()
    assert process.returncode in (0, 143)


@contextmanager
def _killed_if_late(process: subprocess.Popen[str]) -> Iterator[None]:
    """Limit the start and the end of a process. The test between them takes as long as it needs."""
    killer = threading.Timer(_SECONDS_MAX, process.kill)
    killer.start()
    try:
        yield
    finally:
        killer.cancel()
