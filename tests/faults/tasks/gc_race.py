"""Uploaders of the same contents in separate processes, against gc in a loop."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import sqlalchemy.exc
from sqlalchemy import text
from tests.hub.hub_process import ROOT, environment
from tests.hub.tasks.attachment_store import SOUND, AttachmentStore, Audit

UPLOADERS = 4
# In an object store only time protects what is put and not yet committed: far longer than any upload here takes.
ORPHAN_SECONDS = 60.0
END_SECONDS_MAX = 60.0


@dataclass(slots=True)
class Figures:
    uploads: int = 0
    deletions: int = 0
    # Attachments whose bytes were not there when their uploader looked.
    broken: int = 0
    collections: int = 0
    collected: int = 0
    swept: int = 0

    def line(self) -> str:
        return (
            f"{self.uploads} uploads, {self.deletions} deletions; {self.collections} collections took "
            f"{self.collected} blobs and {self.swept} orphans; {self.broken} attachments without bytes"
        )


def collect(attachment_store: AttachmentStore, figures: Figures) -> None:
    found = attachment_store.collect(orphan_seconds=ORPHAN_SECONDS)
    assert found.failed_count == 0
    figures.collected += found.deleted_count
    figures.swept += found.orphan_count


def collect_bytes_first(attachment_store: AttachmentStore, figures: Figures) -> None:
    """The naive order: first the bytes, then the row."""
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
) -> tuple[Figures, Audit]:
    """Return the counts of a run until it broke, and the leftovers before any sweep."""
    figures = Figures()
    where = (attachment_store.database_url, attachment_store.blobs_url, str(attachment_store.temp_folder))
    command = [sys.executable, "-m", "tests.faults.tasks.uploader", *where]
    uploaders = [
        subprocess.Popen(
            [*command, str(seed + number)],
            cwd=ROOT,
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(UPLOADERS)
    ]
    try:
        for one in uploaders:
            assert one.stdout is not None
            assert one.stdout.readline() == "ready\n"
        for one in uploaders:
            assert one.stdin is not None
            one.stdin.write("go\n")
            one.stdin.flush()
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not figures.broken:
            collection(attachment_store, figures)
            figures.collections += 1
        for one in uploaders:
            said, _ = one.communicate(timeout=END_SECONDS_MAX)
            assert one.returncode == 0, "an uploader failed"
            done = json.loads(said)
            figures.uploads += done["uploads"]
            figures.deletions += done["deletions"]
            figures.broken += done["broken"]
    finally:
        for one in uploaders:
            one.kill()
            one.wait()
            for pipe in (one.stdin, one.stdout):
                if pipe is not None:
                    pipe.close()
    return figures, attachment_store.audit()


def prove(attachment_store: AttachmentStore, seconds: float, seed: int) -> Figures:
    """No attachment without bytes, at any time; and no bytes without a row after a sweep."""
    figures, audit = run(attachment_store, seconds, seed)
    assert figures.broken == 0, figures.line()
    assert audit.broken == [], figures.line()
    attachment_store.collect()
    assert attachment_store.audit() == SOUND
    return figures
