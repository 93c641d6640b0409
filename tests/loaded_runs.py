"""Run the whole suite several times, two runs at once: `make test-loaded`, or `python -m tests.loaded_runs --help`.

A test that depends on luck or on an idle machine fails here sooner or later. Each lane is a clone of its own, with its own
environment, and runs `make test` again and again. A failure stops nothing, because the next run may show another one.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

# Variables of `make` for the commands that it starts. They would change the `make` of a clone.
_OF_MAKE = ("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "MAKEOVERRIDES")
_SUMMARY = re.compile(r"^=+ (.*\b(?:passed|failed|error).*?) in .*=+$", re.MULTILINE)
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


def main(arguments: list[str]) -> int:
    """Return 0 if no run failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.loaded_runs", description=__doc__.partition(":")[0])
    parser.add_argument("--runs", type=int, default=10, help="how many runs in all (default: 10)")
    parser.add_argument("--at-once", type=int, default=2, help="how many at the same time (default: 2)")
    parser.add_argument(
        "--folder", type=Path, default=Path("build/loaded"), help="clones and logs (default: %(default)s)"
    )
    options = parser.parse_args(arguments)
    if min(options.runs, options.at_once) < 1:
        parser.error("--runs and --at-once must be at least 1")
    return run_all(Path.cwd(), options.folder, options.runs, options.at_once)


def run_all(root: Path, folder: Path, runs: int, at_once: int) -> int:
    """Run the suite of the last commit, and print a line for each run that ends."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    printing, stopping = threading.Lock(), threading.Event()
    passed: list[bool] = []

    def lane(first: int) -> None:
        clone = folder / f"lane-{first}"
        subprocess.run(["git", "clone", "--quiet", str(root), str(clone)], check=True)
        for number in range(first, runs + 1, at_once):
            if stopping.is_set():
                return
            log = folder / f"run-{number}.log"
            began = time.monotonic()
            code = _make_test(clone, log)
            if code == -signal.SIGINT:
                # Python may notice Ctrl-C only after the next run: a main thread that is about to wait does not see it.
                stopping.set()
                return
            is_good = code == 0
            with printing:
                passed.append(is_good)
                print(_line(number, runs, log, time.monotonic() - began, is_good=is_good), flush=True)

    print(
        f"onceward: {runs} runs of the suite, {at_once} at once (a quarter of an hour each); logs in {folder}",
        flush=True,
    )
    with ThreadPoolExecutor(at_once) as lanes:
        try:
            list(lanes.map(lane, range(1, min(at_once, runs) + 1)))
        finally:
            # An interrupt of this process alone ends the lanes after their runs.
            stopping.set()
    print(f"onceward: {sum(passed)} of {runs} runs without a failure")
    return 0 if sum(passed) == runs else 1


def _make_test(clone: Path, log: Path) -> int:
    environment = {name: value for name, value in os.environ.items() if name not in _OF_MAKE}
    with log.open("wb") as output:
        ended = subprocess.run(
            ["make", "test"],
            cwd=clone,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        )
    return ended.returncode


def _line(number: int, runs: int, log: Path, seconds: float, *, is_good: bool) -> str:
    text = log.read_text("utf-8", errors="replace")
    found = _SUMMARY.findall(text)
    minutes, rest = divmod(round(seconds), 60)
    line = f"run {number} of {runs}: {found[-1] if found else 'no tests ran'}, {minutes} min {rest} s"
    return line if is_good else "\n  ".join([f"{line}; see {log}", *_FAILED.findall(text)])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
