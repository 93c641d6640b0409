"""Measure, print one table, and save it as Markdown and SVG.

python -m bench            everything, about three minutes
python -m bench --quick    a smoke test: memory and SQLite, no servers, no peers; saves nothing unless told where
"""

from __future__ import annotations

import argparse
import os
import platform
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from bench import chart, names, table
from bench.arena import arena
from bench.contest import Figures, Unable, compete
from bench.peers.process import ROOT, PeerProcess, make_environment


@dataclass(frozen=True, slots=True)
class Plan:
    """Many short rounds rather than few long ones: a disk's mood changes within seconds."""

    stores: tuple[str, ...] = names.STORES
    rounds: int = 8
    seconds: float = 0.12
    peers: bool = True


QUICK = Plan(names.EMBEDDED, rounds=1, seconds=0.02, peers=False)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description="Onceward beside the raw ceiling and its peers."
    )
    parser.add_argument("--quick", action="store_true", help="a smoke test of a few seconds")
    parser.add_argument("--out", type=Path, help="folder for results.md and results.svg (default: bench/)")
    parser.add_argument("--store", action="append", choices=names.STORES, help="only this store; may be repeated")
    options = parser.parse_args(arguments)
    plan = QUICK if options.quick else Plan()
    if options.store:
        plan = Plan(tuple(options.store), plan.rounds, plan.seconds, plan.peers)
    partial = options.quick or options.store
    folder = options.out or (None if partial else ROOT / "bench")
    figures, versions = measure(plan)
    text = table.render(figures, machine(), versions, plan.rounds, plan.seconds)
    print(text)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "results.md").write_text(text, "utf-8")
        (folder / "results.svg").write_text(chart.draw(figures), "utf-8")
    return 0


def measure(plan: Plan) -> tuple[Figures, dict[str, str]]:
    """All figures, and the versions of the peers that took part."""
    figures = Figures.empty()
    versions: dict[str, str] = {}
    python = _peers_python() if plan.peers else None
    # Not the system's folder for temporary files, which may live in memory, where syncing costs nothing.
    (ROOT / "build").mkdir(exist_ok=True)
    for store in plan.stores:
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=ROOT / "build", prefix="bench-")))
            ground = stack.enter_context(arena(store, folder))
            contestants = list(ground.contestants(python))
            for contestant in contestants:
                stack.callback(contestant.close)
            figures.merge(compete(store, contestants, plan.rounds, plan.seconds, _tell))
            figures.trips |= {(store, name): trips for name, trips in ground.trips(python).items()}
            versions |= {peer.name: peer.version for peer in contestants if isinstance(peer, PeerProcess)}
    return figures, {name: version for name, version in versions.items() if name != names.DBOS_WAL}


def machine() -> str:
    """Where this was measured. How long the disk takes to sync decides what any library can add unseen."""
    return (
        f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()},"
        f" SQLite {sqlite3.sqlite_version}; writing and syncing 4 KiB takes {_sync_seconds() * 1e6:.0f} µs here."
    )


def _sync_seconds() -> float:
    took: list[float] = []
    with tempfile.TemporaryFile(dir=ROOT / "build") as file:
        for _ in range(51):
            began = time.perf_counter()
            os.pwrite(file.fileno(), bytes(4096), 0)
            os.fdatasync(file.fileno())
            took.append(time.perf_counter() - began)
    return statistics.median(took)


def _peers_python() -> Path | None:
    try:
        return make_environment()
    except Unable as reason:
        _tell(f"without peers: {reason}")
        return None


def _tell(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
