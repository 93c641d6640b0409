"""A user's process: it charges once, counts the charge in a file, and prints its result."""

from __future__ import annotations

import sys
from pathlib import Path

from onceward import Ledger, open_store
from onceward.ledger.terms import Effect
from onceward.testing import FaultyStore, reached


def main(url: str, charges: Path, effect: Effect) -> None:
    def charge() -> str:
        reached("charging")
        with charges.open("a") as file:
            file.write("charged\n")
        reached("charged")
        return "receipt of the child"

    with Ledger(FaultyStore(open_store(url)), lease_seconds=0.5) as ledger:
        sys.stdout.write(ledger.blocking.run("order", charge, effect=effect))


main(sys.argv[1], Path(sys.argv[2]), Effect(sys.argv[3]))
