"""`python -m tests.faults.turns --seconds 30 --sessions 200`: two hubs on one PostgreSQL, killed at random under load."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from contextlib import closing
from pathlib import Path

from tests.backends import Servers
from tests.faults.turns.turn_load import Load


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.turns", description=__doc__)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--sessions", type=int, default=200)
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    options = parser.parse_args()
    with closing(Servers()) as servers, tempfile.TemporaryDirectory() as folder:
        _print(f"postgresql, seed {options.seed}:")
        load = Load(servers.postgres.create_database(), Path(folder), sessions=options.sessions, seed=options.seed)
        figures = load.run(options.seconds)
    _print("\n".join(f"    {line}" for line in figures.lines()))
    _print("    every message is in one beat, every beat has one response, in order; nothing was done twice")


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
