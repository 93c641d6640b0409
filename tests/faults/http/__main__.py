"""`python -m tests.faults.http --seconds 60`: workers under load and killed at random, on PostgreSQL and on Redis."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from contextlib import closing
from pathlib import Path

from tests.backends import Servers
from tests.faults.fork_server import ForkServer
from tests.faults.http.http_load import Load

PATHS = ("/repeat", "/hold", "/stream", "/hold-stream")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.http", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    options = parser.parse_args()
    with closing(Servers()) as servers, closing(ForkServer("tests.faults.http.worker")) as fork_server:
        stores = {"postgresql": servers.postgres.create_database(), "redis": servers.redis.fresh_url()}
        for name, store in stores.items():
            paths = ("/once", *PATHS) if name == "postgresql" else PATHS
            _print(f"{name}, seed {options.seed}:")
            with tempfile.TemporaryDirectory() as folder:
                figures = Load(fork_server, store, Path(folder), paths, seed=options.seed).run(options.seconds)
            _print("\n".join(f"    {line}" for line in figures.lines()))
            _print("    every key has one answer, the same for everyone; exactly-once effects == keys; nothing is lost")


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
