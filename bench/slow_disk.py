"""One caller on a simulated slower disk.

The time that a library adds to a call does not depend on the disk, but its share of the call does. The goal was set on a
disk where two commits by hand reach 800 calls per second. On a faster disk, a separate process slows its syncs with a few
preloaded lines of C until two commits by hand reach that rate, and then runs the same contest. Without a C compiler this
is not measured.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import sys
from contextlib import closing
from pathlib import Path

from bench import names
from bench.by_hand import ByHand, SqliteLane
from bench.contest import Contestant, Figures, compete
from bench.goals import FRESH_ONE
from bench.ours import Blocking
from bench.peers.process import ROOT
from onceward import open_ledger

CALLS_PER_SECOND = 800
_SOURCE = Path(__file__).with_suffix(".c")
# The pause is adjusted in steps, because a sleep takes longer than requested and the time of a sync varies.
_STEPS = 6
_STEP_SECONDS = 0.1


def measure(folder: Path, rounds: int, seconds: float) -> Figures:
    """Return the figures, which are empty without a C compiler."""
    figures = Figures.empty()
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return figures
    library = folder / "slow_disk.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O2", "-o", library, _SOURCE, "-ldl"], check=True)
    command = [sys.executable, "-m", "bench.slow_disk", str(folder), str(rounds), str(seconds)]
    environment = {**os.environ, "LD_PRELOAD": str(library)}
    completed = subprocess.run(command, check=True, stdout=subprocess.PIPE, cwd=ROOT, env=environment)
    figures.stores[names.SQLITE_SLOW] = [names.BLOCKING, names.BY_HAND]
    for name, rates in json.loads(completed.stdout).items():
        figures.rates[names.SQLITE_SLOW, name, FRESH_ONE] = rates
    return figures


def main(folder: Path, rounds: int, seconds: float) -> None:
    pause = ctypes.c_long.in_dll(ctypes.CDLL(str(folder / "slow_disk.so")), "longer_by_ns")
    ledger = open_ledger(f"sqlite:///{folder}/slow-ours.db")
    with (
        closing(ByHand(lambda: SqliteLane(f"sqlite:///{folder}/slow-by-hand.db"))) as by_hand,
        closing(Blocking(ledger)) as ours,
    ):
        by_hand.warm()
        for _ in range(_STEPS):
            missing = 1 / CALLS_PER_SECOND - 1 / by_hand.rate(FRESH_ONE, _STEP_SECONDS)
            pause.value = max(0, pause.value + round(missing / 2 * 1e9))
        contestants: list[Contestant] = [ours, by_hand]
        figures = compete(names.SQLITE_SLOW, contestants, rounds, seconds, lambda _: None, [FRESH_ONE])
    print(json.dumps({name: figures.rates[names.SQLITE_SLOW, name, FRESH_ONE] for name in (ours.name, by_hand.name)}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
