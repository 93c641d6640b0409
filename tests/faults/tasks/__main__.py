"""`python -m tests.faults.tasks --seconds 60`: gc against four uploaders, on each database and blob store."""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
from contextlib import closing
from pathlib import Path

from tests.backends import Servers
from tests.faults.tasks.gc_race import prove
from tests.hub.tasks import backends


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.tasks", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    arguments = parser.parse_args()
    with closing(Servers()) as servers:
        os.environ.update(servers.s3.environ)
        for backend in backends.ALL:
            _print(f"{backend}, seed {arguments.seed}:")
            with (
                tempfile.TemporaryDirectory() as folder,
                backends.opened(backend, servers, Path(folder)) as attachment_store,
            ):
                attachment_store.task()
                figures = prove(attachment_store, arguments.seconds, arguments.seed)
            _print(f"    {figures.line()}")
            _print("    every attachment has its bytes, and after a sweep all bytes have a row")


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
