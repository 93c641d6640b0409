"""`python -m tests.tasks.fire --seconds 60`: the collection against four uploaders, on each database and store."""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
from contextlib import closing
from pathlib import Path

from tests.backends import Servers
from tests.tasks import places
from tests.tasks.fire.race import prove


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.tasks.fire", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    said = parser.parse_args()
    with closing(Servers()) as servers:
        os.environ.update(servers.s3.environ)
        for place in places.ALL:
            _print(f"{place}, seed {said.seed}:")
            with tempfile.TemporaryDirectory() as folder, places.opened(place, servers, Path(folder)) as vault:
                vault.task()
                figures = prove(vault, said.seconds, said.seed)
            _print(f"    {figures.line()}")
            _print("    every attachment has its bytes, and after a sweep all bytes have a row")


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
