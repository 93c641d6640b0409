"""Durable puts into a blob folder, beside the same steps by hand: hash while writing, fsync, link, fsync the folder.

    python -m bench.blobs.put [folder]

One large blob in MB/s, and small ones per second from one thread and from sixteen. Rounds alternate between the two, so
that both meet the same weather; the ratio is the median of the ratios of each round.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

from onceward.blobs.folder import FolderBlobs

OURS, BY_HAND = "Onceward", "by hand"
LARGE_BYTES = 256 * 1024 * 1024
# What an upload hands over at a time.
PIECE = os.urandom(256 * 1024)
SMALL_BYTES = 4 * 1024
SMALL_COUNT = 300
ROUNDS = 5

Put = Callable[[bytes, int], None]


class Ours:
    def __init__(self, folder: Path) -> None:
        self._blobs = FolderBlobs(folder)

    def put(self, piece: bytes, times: int) -> None:
        with self._blobs.spool() as spool:
            for _ in range(times):
                spool.write(piece)
            spool.finish()
            self._blobs.put(spool, "bl-00000001")


class ByHand:
    """No checks, no locks, no descriptors relative to each other; folders are made and synced as they must be."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        for name in ("tmp", "sha256"):
            (folder / name).mkdir(parents=True)
        self._made: set[Path] = {folder / "sha256"}

    def put(self, piece: bytes, times: int) -> None:
        descriptor, temporary = tempfile.mkstemp(dir=self._folder / "tmp")
        digest = hashlib.sha256()
        try:
            for _ in range(times):
                digest.update(piece)
                os.write(descriptor, piece)
            os.fsync(descriptor)
            sha256 = digest.hexdigest()
            place = self._folder / "sha256" / sha256[:2] / sha256[2:4]
            self._make(place)
            os.link(temporary, place / sha256)
            _sync(place)
        finally:
            os.close(descriptor)
            Path(temporary).unlink()

    def _make(self, place: Path) -> None:
        if place not in self._made:
            self._make(place.parent)
            place.mkdir(exist_ok=True)
            _sync(place.parent)
            self._made.add(place)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def large(put: Put) -> float:
    """MB/s."""
    piece = os.urandom(16) + PIECE[16:]
    started = time.perf_counter()
    put(piece, LARGE_BYTES // len(piece))
    return LARGE_BYTES / 1e6 / (time.perf_counter() - started)


def small(put: Put, threads: int) -> float:
    """Puts per second, every one of other bytes."""
    contents = [os.urandom(SMALL_BYTES) for _ in range(SMALL_COUNT)]
    with ThreadPoolExecutor(threads) as pool:
        started = time.perf_counter()
        list(pool.map(lambda content: put(content, 1), contents))
        return SMALL_COUNT / (time.perf_counter() - started)


SCENARIOS: dict[str, Callable[[Put], float]] = {
    "one blob of 256 MiB, MB/s": large,
    "blobs of 4 KiB, one thread, puts/s": lambda put: small(put, 1),
    "blobs of 4 KiB, 16 threads, puts/s": lambda put: small(put, 16),
}


def main(where: Path | None) -> None:
    print(f"| durable puts | {OURS} | {BY_HAND} | ratio |")
    print("| --- | --- | --- | --- |")
    for name, scenario in SCENARIOS.items():
        ours: list[float] = []
        by_hand: list[float] = []
        for number in range(ROUNDS):
            folder = Path(tempfile.mkdtemp(dir=where))
            try:
                contestants = [(ours, Ours(folder / "ours").put), (by_hand, ByHand(folder / "by_hand").put)]
                # Each goes first every other time.
                for figures, put in contestants[:: -1 if number % 2 else 1]:
                    figures.append(scenario(put))
            finally:
                shutil.rmtree(folder)
        ratio = median(mine / theirs for mine, theirs in zip(ours, by_hand, strict=True))
        print(f"| {name} | {median(ours):,.0f} | {median(by_hand):,.0f} | {ratio:.2f} |")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
