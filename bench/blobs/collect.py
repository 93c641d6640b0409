"""Garbage collection of an increasing number of blobs: the time per blob must not grow.

Half of the blobs are garbage and half are attached. Every blob has its file.
"""

from __future__ import annotations

import hashlib
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from sqlalchemy import text

from onceward.hub.blobs.folder import FolderBlobs
from onceward.hub.db.engine import Database, open_database
from onceward.hub.db.migrate import migrate
from onceward.hub.tasks import create_task, gc_blobs

ROWS_AT_ONCE = 10_000
THEN = "2026-01-01T00:00:00.000000Z"
_BLOB = text("INSERT INTO blobs VALUES (:id, :sha256, :size, 'local_cas', :key, :at, :at)")
_ATTACHMENT = text("""
    INSERT INTO attachments (id, task_id, kind, source_type, blob_id, created_at, updated_at)
    VALUES (:attachment, 't1', 'other', 'managed_blob', :id, :at, :at)
""")


def _rows(count: int) -> Iterator[list[dict[str, Any]]]:
    for start in range(0, count, ROWS_AT_ONCE):
        rows = []
        for number in range(start, min(start + ROWS_AT_ONCE, count)):
            content = str(number)
            sha256 = hashlib.sha256(content.encode()).hexdigest()
            key = f"sha256/{sha256[:2]}/{sha256[2:4]}/{sha256}"
            row = {"id": f"bl-{number:08}", "attachment": f"at-{number:08}", "sha256": sha256, "key": key, "at": THEN}
            rows.append({**row, "content": content, "size": len(content)})
        yield rows


def _fill(database: Database, folder: Path, count: int) -> None:
    """Create the rows and files that uploads would create, without syncs and checks."""
    with database.write() as tx:
        create_task(tx, "A task", task_id="t1")
    for rows in _rows(count):
        for row in rows:
            file = folder / row["key"]
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(row["content"])
        with database.write() as tx:
            tx.execute(_BLOB, rows)
            tx.execute(_ATTACHMENT, rows[::2])
    if not database.is_sqlite:
        with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(text("ANALYZE"))


def measure(url: str, scratch: Path, count: int) -> float:
    """Return the microseconds for each collected blob."""
    with tempfile.TemporaryDirectory(dir=scratch) as folder, closing(open_database(url)) as database:
        migrate(database)
        store = FolderBlobs(Path(folder))
        _fill(database, Path(folder), count)
        started = time.perf_counter()
        # By their rows, all blobs are older than the grace time. The files are younger, so none is treated as an orphan.
        found = gc_blobs(database, store, dry_run=False, grace_seconds=3600)
        took = time.perf_counter() - started
        assert (found.deleted_count, found.failed_count) == (count // 2, 0), found
        return took / (count // 2) * 1e6
