"""Backend of tasks and attachments: the database and blobs of a hub, opened directly, running or not."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, BinaryIO, TypeVar

from onceward.cli.backend import AttachmentDetails, JsonObject, Progress
from onceward.errors import KeyReused, NotFound, StoreUnavailable, TooLarge
from onceward.http.request.headers import key_of as header_key
from onceward.hub import tasks
from onceward.hub.audit.actor import local_actor
from onceward.hub.audit.log import Details
from onceward.hub.audit.recorder import StartedAction, record_action_blocking
from onceward.hub.blobs import CHUNK_BYTES, BlobStore
from onceward.hub.blobs.open import open_blobs
from onceward.hub.config import data_folder
from onceward.hub.config.config import Config
from onceward.hub.db.engine import Database, Transaction
from onceward.hub.db.page import LIMIT_MAX, RowPage
from onceward.hub.db.request_key import RequestKey, request_key

# The principal of every caller of a hub without tokens.
_LOCAL = "local"

T = TypeVar("T")


@contextmanager
def local_data(config: Config, *, may_be_new: bool) -> Iterator[LocalData]:
    if not may_be_new and not data_folder.has_data(config):
        folder = str(config.data_folder)
        raise NotFound(f"no hub data in {folder!r}; give the folder with --data-dir, or a running hub with --hub")
    with data_folder.opened(config) as database:
        yield LocalData(config, database, open_blobs(config.blobs_url))


class LocalData:
    """`onceward.cli.backend.Backend` on a database and a blob store."""

    def __init__(self, config: Config, database: Database, blobs: BlobStore) -> None:
        self._config = config
        self._database = database
        self._blobs = blobs

    def create_task(self, title: str, task_id: str | None, spec_id: str | None, key: str | None) -> JsonObject:
        with self._database.write() as tx:
            made = tasks.create_task(tx, title, task_id=task_id, spec_id=spec_id, request=self._request(key))
        if (made.title, made.spec_id) != (title, spec_id) or task_id not in {None, made.id}:
            raise _reused()
        return _task(made)

    def tasks(self, limit: int | None) -> list[JsonObject]:
        return [_task(task) for task in self._all(tasks.list_tasks, limit)]

    def task(self, task_id: str) -> JsonObject:
        with self._database.read() as tx:
            return _task(tasks.get_task(tx, task_id))

    def delete_task(self, task_id: str) -> None:
        with self._database.write() as tx:
            tasks.delete_task(tx, task_id)

    def attach_file(
        self,
        task_id: str,
        file: BinaryIO,
        details: AttachmentDetails,
        key: str | None,
        *,
        allow_mismatch: bool,
        progress: Progress,
    ) -> JsonObject:
        self.task(task_id)
        rules = data_folder.upload_rules(self._config)
        if allow_mismatch:
            rules = dataclasses.replace(rules, reject_media_type_mismatch=False)
        bytes_max = self._config.attachments.max_upload_bytes
        with self._blobs.temp_file() as temp_file:
            while piece := file.read(CHUNK_BYTES):
                if temp_file.size + len(piece) > bytes_max:
                    raise TooLarge(f"an upload is limited to {bytes_max} bytes")
                temp_file.write(piece)
                progress(temp_file.size, None)
            temp_file.finish()
            quota = tasks.Quota(_LOCAL, self._config.attachments.max_bytes_per_principal)
            added = tasks.create_managed_attachment(
                self._database, self._blobs, task_id, temp_file, _new(details), rules, self._request(key), quota
            ).attachment
        if (added.task_id, added.kind, added.sha256) != (task_id, details.kind, temp_file.sha256):
            raise _reused()
        return added.json()

    def attach_link(
        self,
        task_id: str,
        details: AttachmentDetails,
        key: str | None,
        *,
        external_url: str | None,
        repo_path: str | None,
    ) -> JsonObject:
        link = {"external_url": external_url, "repo_path": repo_path}
        allowed, request = self._config.attachments.allowed_media_types, self._request(key)
        with self._database.write() as tx:
            added = tasks.create_link_attachment(
                tx, task_id, _new(details), **link, allowed_media_types=allowed, request=request
            ).attachment
        if (added.task_id, added.kind, added.external_url, added.repo_path) != (task_id, details.kind, *link.values()):
            raise _reused()
        return added.json()

    def attachments(self, task_id: str, limit: int | None) -> list[JsonObject]:
        def listed(tx: Transaction, wanted: int, after: str) -> RowPage[tasks.TaskAttachment]:
            return tasks.list_attachments(tx, task_id, wanted, after)

        return [attachment.json() for attachment in self._all(listed, limit)]

    def attachment(self, attachment_id: str) -> JsonObject:
        with self._database.read() as tx:
            return tasks.get_attachment(tx, attachment_id).json()

    def replace_labels(self, attachment_id: str, labels: Iterable[str]) -> JsonObject:
        with self._database.write() as tx:
            return tasks.replace_labels(tx, attachment_id, labels).json()

    def download(self, attachment_id: str, to: BinaryIO, progress: Progress) -> JsonObject:
        with self._database.read() as tx:
            content = tasks.open_content(tx, attachment_id)
        digest, done = hashlib.sha256(), 0
        for piece in content.read(self._blobs):
            digest.update(piece)
            to.write(piece)
            done += len(piece)
            progress(done, content.size_bytes)
        if digest.hexdigest() != content.sha256:
            raise StoreUnavailable(f"the content of {attachment_id} is damaged; run onceward admin fsck")
        return {"size_bytes": done, "sha256": content.sha256}

    def remove_attachment(self, attachment_id: str) -> None:
        with self._database.write() as tx:
            tasks.delete_attachment(tx, attachment_id)

    def gc_blobs(
        self, *, dry_run: bool, grace_seconds: float | None, batch_size: int | None, progress: Progress
    ) -> JsonObject:
        settings = self._config.attachments
        grace_seconds = settings.gc_grace if grace_seconds is None else grace_seconds
        with self._record_action("blobs.gc", {"dry_run": dry_run, "grace_seconds": grace_seconds}) as audit:
            done = tasks.gc_blobs(
                self._database,
                self._blobs,
                dry_run=dry_run,
                batch_size=batch_size or settings.gc_batch_size,
                grace_seconds=grace_seconds,
                progress=_counting(progress, tasks.blob_totals(self._database)[0]),
            )
            audit.details = done.json()
        return done.json()

    def fsck(self, *, quarantine: bool, progress: Progress) -> JsonObject:
        with self._record_action("blobs.fsck", {"quarantine": quarantine}) as audit:
            check = _counting(progress, tasks.blob_totals(self._database)[1])
            found = list(tasks.check_blobs(self._database, self._blobs, quarantine=quarantine, progress=check))
            counters = tasks.quota.check_counters(self._database, correct=quarantine)
            audit.details = {
                "damaged": [damage.blob_id for damage in found],
                "wrong_counters": [counter.principal for counter in counters],
            }
        return {
            "damaged": [damage.json() for damage in found],
            "wrong_counters": [counter.json() for counter in counters],
        }

    def usage(self) -> JsonObject:
        found: list[tasks.PrincipalUsage] = self._all(tasks.quota.usage_page, None)
        bytes_max = self._config.attachments.max_bytes_per_principal
        return {"usage": [one.json() for one in found], "max_bytes_per_principal": bytes_max}

    def backfill_spec_attachments(self, progress: Progress) -> JsonObject:
        with self._record_action("tasks.backfill_spec_attachments", {}) as audit:
            counting = _counting(progress, tasks.spec_total(self._database))
            done = tasks.backfill_spec_attachments(self._database, counting)
            audit.details = {"added_count": done.added_count}
        return done.json()

    def _record_action(self, action: str, details: Details) -> AbstractContextManager[StartedAction]:
        return record_action_blocking(self._database, local_actor(), action, None, details)

    def _all(self, listed: Callable[[Transaction, int, str], RowPage[T]], limit: int | None) -> list[T]:
        """Return all items of a list, or at most `limit`, reading as many pages as needed."""
        found: list[T] = []
        after: str | None = ""
        while after is not None and len(found) != limit:
            wanted = LIMIT_MAX if limit is None else min(LIMIT_MAX, limit - len(found))
            with self._database.read() as tx:
                page = listed(tx, wanted, after)
            found += page.items
            after = page.next_after
        return found

    def _request(self, key: str | None) -> RequestKey | None:
        """Return the request key for a new row: the same one as for a request with this key to a hub without tokens."""
        plain = None if key is None else header_key([key], [])
        return request_key(_LOCAL, plain, self._config.retain_seconds)


def _reused() -> KeyReused:
    return KeyReused("Idempotency key already used with different request")


def _counting(progress: Progress, total: int) -> Any:
    """Convert increments, which the services report, into a running total for `progress`."""
    done = 0

    def more(count: int) -> None:
        nonlocal done
        done += count
        progress(done, total)

    return more


def _new(details: AttachmentDetails) -> tasks.NewTaskAttachment:
    values = {one.name: getattr(details, one.name) for one in dataclasses.fields(details)}
    return tasks.NewTaskAttachment(**{**values, "meta": dict(details.meta)})


def _task(task: tasks.Task) -> JsonObject:
    return {name: value for name, value in dataclasses.asdict(task).items() if value is not None}
