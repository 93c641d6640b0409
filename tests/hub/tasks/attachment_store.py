"""Rows and blobs together, with an audit: does every row have its bytes?"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import text

from onceward.core.canonical import Json
from onceward.hub import tasks
from onceward.hub.blobs import BlobMissing, BlobStore
from onceward.hub.db.engine import Database
from onceward.hub.db.request_key import RequestKey
from onceward.hub.events import log
from onceward.hub.events.log import Event
from onceward.hub.tasks import Collected, NewTaskAttachment, Quota, TaskAttachment, UploadRules
from onceward.hub.tasks.insert import Added

RULES = UploadRules()


@dataclass(frozen=True, slots=True)
class Audit:
    """Attachments whose bytes are missing or wrong, and keys without a row."""

    broken: list[str]
    unreachable: list[str]


@dataclass(frozen=True, slots=True)
class AttachmentStore:
    database: Database
    store: BlobStore
    database_url: str
    blobs_url: str
    temp_folder: Path

    @property
    def blobs_folder(self) -> Path:
        assert self.blobs_url.startswith("file://")
        return Path(self.blobs_url.removeprefix("file://"))

    def task(self, task_id: str = "t1", **fields: Any) -> tasks.Task:
        with self.database.write() as tx:
            return tasks.create_task(tx, fields.pop("title", "A task"), task_id=task_id, **fields)

    def attach(self, content: bytes, **fields: Any) -> TaskAttachment:
        return self.add(content, **fields).attachment

    def add(
        self,
        content: bytes,
        task_id: str = "t1",
        *,
        store: BlobStore | None = None,
        rules: UploadRules = RULES,
        request: RequestKey | None = None,
        quota: Quota | None = None,
        **fields: Any,
    ) -> Added:
        with self.store.temp_file() as temp_file:
            temp_file.write(content)
            temp_file.finish()
            new = NewTaskAttachment(**{"kind": "artifact", **fields})
            return tasks.create_managed_attachment(
                self.database, store or self.store, task_id, temp_file, new, rules, request, quota
            )

    def link(self, task_id: str = "t1", *, request: RequestKey | None = None, **fields: Any) -> TaskAttachment:
        target = {name: fields.pop(name) for name in ("external_url", "repo_path") if name in fields}
        with self.database.write() as tx:
            new = NewTaskAttachment(**{"kind": "spec", **fields})
            return tasks.create_link_attachment(tx, task_id, new, **target, request=request).attachment

    def delete(self, attachment_id: str) -> None:
        with self.database.write() as tx:
            tasks.delete_attachment(tx, attachment_id)

    def get(self, attachment_id: str) -> TaskAttachment:
        with self.database.read() as tx:
            return tasks.get_attachment(tx, attachment_id)

    def content(self, attachment_id: str) -> bytes:
        with self.database.read() as tx:
            content = tasks.open_content(tx, attachment_id)
        return b"".join(self.store.read(content.blob_key))

    def collect(self, *, store: BlobStore | None = None, dry_run: bool = False, **how: Any) -> Collected:
        """Run gc without a grace period, unless one is given."""
        how = {"grace_seconds": 0, "orphan_seconds": 0, **how}
        return tasks.gc_blobs(self.database, store or self.store, dry_run=dry_run, **how)

    def damage(self, *, quarantine: bool = False) -> dict[str, str]:
        """Return the blob ids of damaged blobs, each with its problem."""
        found = tasks.check_blobs(self.database, self.store, quarantine=quarantine)
        return {one.blob_id: one.problem for one in found}

    def events(self, name: str = "") -> list[Event]:
        with self.database.read() as tx:
            found = log.page(tx, 0, log.extent(tx).last_event_id, log.PAGE_MAX)
        return [event for event in found if name in {"", event.name}]

    def rows(self, query: str, **values: Json) -> Sequence[Any]:
        with self.database.read() as tx:
            return tx.execute(text(query), values).all()

    def count(self, table: str) -> int:
        return int(self.rows(f"SELECT count(*) FROM {table}")[0][0])  # noqa: S608  # a name from the tests

    def write(self, statement: str, **values: Json) -> None:
        with self.database.write() as tx:
            tx.execute(text(statement), values)

    def keys(self) -> set[str]:
        return {stored.key for stored in self.store.keys()}  # noqa: SIM118  # not a dictionary's

    def audit(self) -> Audit:
        """Read every byte and compare it with the rows."""
        rows = self.rows(
            "SELECT attachments.id, blobs.sha256, blobs.blob_key FROM attachments JOIN blobs ON blobs.id = blob_id"
        )
        fine = {key for key, sha256 in {(key, sha256) for _, sha256, key in rows} if self._sha256(key) == sha256}
        named = {row[0] for row in self.rows("SELECT blob_key FROM blobs")}
        return Audit(sorted(row[0] for row in rows if row[2] not in fine), sorted(self.keys() - named))

    def _sha256(self, key: str) -> str:
        digest = hashlib.sha256()
        try:
            for piece in self.store.read(key):
                digest.update(piece)
        except BlobMissing:
            return "missing"
        return digest.hexdigest()


SOUND = Audit([], [])
