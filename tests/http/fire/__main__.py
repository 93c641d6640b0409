"""`python -m tests.http.fire --seconds 60`: workers under load and killed at random, on PostgreSQL and on Redis."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from contextlib import closing
from pathlib import Path

from tests.backends import Servers
from tests.http.fire.load import Load
from tests.system.nursery import Nursery

PATHS = ("/repeat", "/hold", "/stream", "/hold-stream")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.http.fire", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    said = parser.parse_args()
    with closing(Servers()) as servers, closing(Nursery("tests.http.fire.worker")) as nursery:
        stores = {"postgresql": servers.postgres.create_database(), "redis": servers.redis.fresh_url()}
        for name, store in stores.items():
            paths = ("/once", *PATHS) if name == "postgresql" else PATHS
            _print(f"{name}, seed {said.seed}:")
            with tempfile.TemporaryDirectory() as folder:
                figures = Load(nursery, store, Path(folder), paths, seed=said.seed).run(said.seconds)
            _print("\n".join(f"    {line}" for line in figures.lines()))
            _print("    every key has one answer, the same for everyone; exactly-once effects == keys; nothing is lost")


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
