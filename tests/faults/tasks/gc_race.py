"""Uploaders of the same contents in separate processes, against gc in a loop."""

from __future__ import annotations

import json
import os
import select
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass

import sqlalchemy.exc
from sqlalchemy import text
from tests.faults.fork_server import ForkServer
from tests.hub.tasks.attachment_store import SOUND, AttachmentStore, Audit

UPLOADERS = 4
# In an object store only time protects what is put and not yet committed: far longer than any upload here takes.
ORPHAN_SECONDS = 60.0
END_SECONDS_MAX = 60.0


@dataclass(slots=True)
class Figures:
    uploads: int = 0
    deletions: int = 0
    # Attachments whose bytes were missing when their uploader read them.
    broken: int = 0
    collections: int = 0
    collected: int = 0
    swept: int = 0

    def line(self) -> str:
        return (
            f"{self.uploads} uploads, {self.deletions} deletions; {self.collections} collections took "
            f"{self.collected} blobs and {self.swept} orphans; {self.broken} attachments without bytes"
        )


class Uploader:
    """A process that uploads between `go` and `stop`. It prints a line when it is ready, and one about what it did."""

    def __init__(self, fork_server: ForkServer, *arguments: str) -> None:
        (reads, orders), (lines, writes) = os.pipe(), os.pipe()
        self._orders, self._lines = os.fdopen(orders, "w"), os.fdopen(lines)
        fork_server.fork(list(arguments), reads, writes)
        os.close(reads)
        os.close(writes)

    def go(self) -> None:
        self._orders.write("go\n")
        self._orders.flush()

    def stop(self) -> None:
        self._orders.close()

    def readline(self) -> str:
        """Return its next line. Fails if it has ended without one, with an error, or hangs."""
        assert select.select([self._lines], [], [], END_SECONDS_MAX)[0], "an uploader hangs"
        line = self._lines.readline()
        assert line, "an uploader failed; see its error above"
        return line

    def close(self) -> None:
        self._orders.close()
        self._lines.close()


def collect(attachment_store: AttachmentStore, figures: Figures) -> None:
    found = attachment_store.collect(orphan_seconds=ORPHAN_SECONDS)
    assert found.failed_count == 0
    figures.collected += found.deleted_count
    figures.swept += found.orphan_count


def collect_bytes_first(attachment_store: AttachmentStore, figures: Figures) -> None:
    """Delete in the wrong order: first the bytes, then the row."""
    query = (
        "SELECT blobs.id, blob_key FROM blobs LEFT JOIN attachments ON blob_id = blobs.id WHERE attachments.id IS NULL"
    )
    for blob_id, key in attachment_store.rows(query):
        attachment_store.store.discard(key)
        try:
            with attachment_store.database.write() as tx:
                tx.execute(text("DELETE FROM blobs WHERE id = :id"), {"id": blob_id})
        except sqlalchemy.exc.IntegrityError:
            # Attached meanwhile, to what is not there any more.
            figures.broken += attachment_store.store.size(key) is None
            continue
        figures.collected += 1


def run(
    attachment_store: AttachmentStore,
    seconds: float,
    seed: int,
    collection: Callable[[AttachmentStore, Figures], None] = collect,
    collected_min: int = 0,
) -> tuple[Figures, Audit]:
    """Return the counts of a run until it broke, and the leftovers before any sweep.

    It goes on after these seconds until gc has taken at least `collected_min` blobs.
    """
    figures = Figures()
    where = (attachment_store.database_url, attachment_store.blobs_url, str(attachment_store.temp_folder))
    # Its end is the end of all uploaders.
    with closing(ForkServer("tests.faults.tasks.uploader")) as fork_server, ExitStack() as stack:
        uploaders = [
            stack.enter_context(closing(Uploader(fork_server, *where, str(seed + number))))
            for number in range(UPLOADERS)
        ]
        for one in uploaders:
            assert one.readline() == "ready\n"
        for one in uploaders:
            one.go()
        deadline = time.monotonic() + seconds
        while (time.monotonic() < deadline or figures.collected < collected_min) and not figures.broken:
            assert time.monotonic() < deadline + END_SECONDS_MAX, figures.line()
            collection(attachment_store, figures)
            figures.collections += 1
        for one in uploaders:
            one.stop()
        for one in uploaders:
            done = json.loads(one.readline())
            figures.uploads += done["uploads"]
            figures.deletions += done["deletions"]
            figures.broken += done["broken"]
    return figures, attachment_store.audit()


def prove(attachment_store: AttachmentStore, seconds: float, seed: int, *, collected_min: int = 0) -> Figures:
    """Check that no attachment lacked its bytes at any time, and that no bytes lack a row after a sweep."""
    figures, audit = run(attachment_store, seconds, seed, collected_min=collected_min)
    assert figures.broken == 0, figures.line()
    assert audit.broken == [], figures.line()
    attachment_store.collect()
    assert attachment_store.audit() == SOUND
    return figures
