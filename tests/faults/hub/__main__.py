"""`python -m tests.faults.hub --seconds 60`: a hub of two workers under load, killed at random, on each database."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from contextlib import closing
from pathlib import Path

from tests.backends import Servers
from tests.faults.hub.hub_load import Load


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.hub", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    options = parser.parse_args()
    with closing(Servers()) as servers:
        for name in ("sqlite", "postgresql", "postgresql and redis"):
            _print(f"{name}, seed {options.seed}:")
            with tempfile.TemporaryDirectory() as folder:
                data_dir = Path(folder) / "data"
                url, args = f"sqlite:///{data_dir}/hub.db", []
                if name != "sqlite":
                    url = servers.postgres.create_database()
                    args = ["--database", url]
                if name == "postgresql and redis":
                    args += ["--ledger", servers.redis.fresh_url()]
                figures = Load(data_dir, url, args, seed=options.seed).run(options.seconds)
            _print("\n".join(f"    {line}" for line in figures.lines()))
            _print("    every key has one row, one event and one answer; every follower has the whole log, once")


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
