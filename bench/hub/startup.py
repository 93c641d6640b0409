"""Startup time of `onceward serve` with a new data folder, and with one that it has used before."""

from __future__ import annotations

import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

_SECONDS_MAX = 30.0


def measure(folder: Path, rounds: int) -> dict[str, float]:
    """Return the median seconds from the start of the process to its line "listening on"."""
    first = [_start(folder / f"new-{number}") for number in range(rounds)]
    again = [_start(folder / "new-0") for _ in range(rounds)]
    return {"first": statistics.median(first), "again": statistics.median(again)}


def _start(folder: Path) -> float:
    began = time.perf_counter()
    command = [sys.executable, "-m", "onceward", "serve", "--port", "0", "--data-dir", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        output = process.stdout
        assert output is not None
        try:
            for line in output:
                if "listening on" in line:
                    return time.perf_counter() - began
            raise RuntimeError("the hub exited before it was listening")
        finally:
            process.send_signal(signal.SIGTERM)
            output.read()
            process.wait(_SECONDS_MAX)
