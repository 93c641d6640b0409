"""Durable puts into a blob folder, compared with the same steps by hand.

The steps are: hash while writing, fsync, link, fsync the folder.
One large blob is measured in MB/s, and small blobs per second from one thread and from sixteen. Small blobs are also
measured as attachments, with rows in SQLite, events and media types. Each round measures all contestants in turn, so that
all run under the same conditions.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from bench.contest import Figures
from onceward.hub import tasks
from onceward.hub.blobs.folder import FolderBlobs
from onceward.hub.db.engine import open_database
from onceward.hub.db.migrate import migrate

FOLDER = "folder"
OURS, BY_HAND, WITH_ROWS = "Onceward", "by hand", "Onceward, with rows"
# Bytes of one write, as in an upload.
PIECE = os.urandom(256 * 1024)
SMALL_BYTES = 4 * 1024
# Small blobs start like a PNG, because most uploads have a known type. Unknown bytes cost a call of libmagic each.
PICTURE = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR"
MANY = 16


@dataclass(frozen=True, slots=True)
class Load:
    """A number of blobs of one size, put by a number of threads."""

    size_bytes: int
    count: int
    threads: int

    def __str__(self) -> str:
        if self.count == 1:
            return f"one blob of {self.size_bytes // 1024**2} MiB, MB/s"
        threads = "one thread" if self.threads == 1 else f"{self.threads} threads"
        return f"blobs of {self.size_bytes // 1024} KiB, {threads}, puts/s"


class Putter(Protocol):
    def put(self, piece: bytes, times: int) -> None: ...


class Ours:
    def __init__(self, folder: Path) -> None:
        self._blobs = FolderBlobs(folder)

    def put(self, piece: bytes, times: int) -> None:
        with self._blobs.temp_file() as temp_file:
            for _ in range(times):
                temp_file.write(piece)
            temp_file.finish()
            self._blobs.put(temp_file, "bl-00000001")


class WithRows:
    """Puts with the rows of an attachment, as the hub creates it from an upload, without HTTP."""

    def __init__(self, folder: Path) -> None:
        self._blobs = FolderBlobs(folder / "blobs")
        self._database = open_database(f"sqlite:///{folder}/hub.db")
        migrate(self._database)
        with self._database.write() as tx:
            tasks.create_task(tx, "A task", task_id="t1")
        self._new, self._rules = tasks.NewTaskAttachment("artifact"), tasks.UploadRules()

    def put(self, piece: bytes, times: int) -> None:
        with self._blobs.temp_file() as temp_file:
            for _ in range(times):
                temp_file.write(piece)
            temp_file.finish()
            tasks.create_managed_attachment(self._database, self._blobs, "t1", temp_file, self._new, self._rules)

    def close(self) -> None:
        self._database.close()


class ByHand:
    """Puts by hand, without checks, locks and relative file descriptors. Folders are synced as durability requires."""

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


def loads(large_bytes: int, small_count: int) -> tuple[Load, Load, Load]:
    """Return three loads: the large blob, small blobs from one thread, and small blobs from sixteen."""
    return Load(large_bytes, 1, 1), Load(SMALL_BYTES, small_count, 1), Load(SMALL_BYTES, small_count, MANY)


def compete(
    scratch: Path, large_bytes: int, small_count: int, rounds: int, report: Callable[[str], None] = lambda _: None
) -> Figures:
    """Measure the large blob with two contestants and small ones with all three, in an order that rotates each round."""
    figures = Figures.empty()
    figures.stores[FOLDER] = [OURS, BY_HAND, WITH_ROWS]
    for number in range(rounds):
        report(f"puts: round {number + 1} of {rounds}")
        for load in loads(large_bytes, small_count):
            # Small files are deleted at the end, because ext4 creates files slowly where many have just been deleted.
            folder = Path(tempfile.mkdtemp(dir=scratch))
            with ExitStack() as stack:
                if load.count == 1:
                    stack.callback(shutil.rmtree, folder)
                contestants: list[tuple[str, Putter]] = [
                    (OURS, Ours(folder / "ours")),
                    (BY_HAND, ByHand(folder / "by_hand")),
                ]
                if load.count > 1:
                    contestants.append((WITH_ROWS, stack.enter_context(closing(WithRows(folder)))))
                turn = number % len(contestants)
                for who, contestant in contestants[turn:] + contestants[:turn]:
                    figures.rates.setdefault((FOLDER, who, load), []).append(_rate(contestant, load))
    return figures


def _rate(contestant: Putter, load: Load) -> float:
    """Return MB/s of one blob, or blobs per second. Every blob has different bytes."""
    if load.count == 1:
        piece = os.urandom(16) + PIECE[16:]
        started = time.perf_counter()
        contestant.put(piece, load.size_bytes // len(piece))
        return load.size_bytes / 1e6 / (time.perf_counter() - started)
    contents = [PICTURE + os.urandom(load.size_bytes - len(PICTURE)) for _ in range(load.count)]
    with ThreadPoolExecutor(load.threads) as pool:
        started = time.perf_counter()
        list(pool.map(lambda content: contestant.put(content, 1), contents))
        return load.count / (time.perf_counter() - started)
