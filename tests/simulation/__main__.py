"""`python -m tests.simulation --seeds 20000`, or, to trace one run, `--seed 17 --trace`."""

from __future__ import annotations

import argparse
import sys
import time

from tests.simulation.scenario import simulate


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation")
    parser.add_argument("--seeds", type=int, default=2000, help="how many seeds to live through")
    parser.add_argument("--from", type=int, default=0, dest="first", help="the first of them")
    parser.add_argument("--seed", type=int, help="one seed alone")
    parser.add_argument("--trace", action="store_true", help="with --seed: print everything that happened")
    asked = parser.parse_args()
    write = sys.stdout.write
    if asked.seed is not None:
        report = simulate(asked.seed, trace=asked.trace)
        write("".join(f"{line}\n" for line in report.trace) + f"{report}\n")
        return 1 if report.broken else 0
    started = time.monotonic()
    broken = 0
    for seed in range(asked.first, asked.first + asked.seeds):
        report = simulate(seed)
        if report.broken:
            broken += 1
            write(f"{report}\n")
    seconds = time.monotonic() - started
    write(f"{asked.seeds} seeds in {seconds:.1f} s ({asked.seeds / seconds:.0f}/s), {broken} broke a promise\n")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
