"""Backend of tasks, attachments and claims: a running hub, over HTTP."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, BinaryIO

from onceward.cli.backend import AttachmentDetails, JsonObject, Progress
from onceward.cli.output import hidden_progress
from onceward.hub.client import About, AuditOnly, BlockingHub, ClaimSeen
from onceward.hub.client.connection import HubOptions
from onceward.hub.client.upload import no_progress

# A person is waiting at the terminal: give up on an unreachable hub sooner than the client's default.
_DEADLINE_SECONDS = 15.0


@contextmanager
def remote_hub(url: str, token: str | None, options: HubOptions | None = None) -> Iterator[RemoteHub]:
    own: HubOptions = {"deadline_seconds": _DEADLINE_SECONDS}
    own.update(options or {})
    with BlockingHub(url, token, **own) as hub:
        yield RemoteHub(hub)


class RemoteHub:
    """`onceward.cli.backend.Backend` and `onceward.cli.commands.claims.ClaimsBackend` over HTTP."""

    def __init__(self, hub: BlockingHub) -> None:
        self._hub = hub

    def create_task(self, title: str, task_id: str | None, spec_id: str | None, key: str | None) -> JsonObject:
        made = self._hub.create_task(title, task_id=task_id, spec_id=spec_id, idempotency_key=key)
        return _shown(made)

    def tasks(self, limit: int | None) -> list[JsonObject]:
        return [_shown(task) for task in self._hub.tasks(limit=limit)]

    def task(self, task_id: str) -> JsonObject:
        return _shown(self._hub.task(task_id))

    def delete_task(self, task_id: str) -> None:
        self._hub.delete_task(task_id)

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
        # Fail early: the hub checks the task only after the whole upload.
        self._hub.task(task_id)
        made = self._hub.attach_file(
            task_id,
            file,
            details.kind,
            filename=details.filename,
            reject_media_type_mismatch=False if allow_mismatch else None,
            progress=progress,
            idempotency_key=key,
            **_about(details),
        )
        return _shown(made)

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
        return _shown(self._hub.attach_link(task_id, details.kind, **link, idempotency_key=key, **_about(details)))

    def attachments(self, task_id: str, limit: int | None) -> list[JsonObject]:
        return [_shown(attachment) for attachment in self._hub.task_attachments(task_id, limit=limit)]

    def attachment(self, attachment_id: str) -> JsonObject:
        return _shown(self._hub.attachment(attachment_id))

    def replace_labels(self, attachment_id: str, labels: Iterable[str]) -> JsonObject:
        return _shown(self._hub.replace_labels(attachment_id, labels))

    def download(self, attachment_id: str, to: BinaryIO, progress: Progress) -> JsonObject:
        return dataclasses.asdict(self._hub.download(attachment_id, to, progress=progress))

    def remove_attachment(self, attachment_id: str) -> None:
        self._hub.remove_attachment(attachment_id)

    def gc_blobs(
        self, *, dry_run: bool, grace_seconds: float | None, batch_size: int | None, progress: Progress
    ) -> JsonObject:
        done = self._hub.storage.gc(
            dry_run=dry_run, grace_seconds=grace_seconds, batch_size=batch_size, progress=_reported(progress)
        )
        return dataclasses.asdict(done)

    def fsck(self, *, quarantine: bool, progress: Progress) -> JsonObject:
        return dataclasses.asdict(self._hub.storage.check(quarantine=quarantine, progress=_reported(progress)))

    def usage(self) -> JsonObject:
        found = [dataclasses.asdict(one) for one in self._hub.storage.usage()]
        return {"usage": found, "max_bytes_per_principal": self._hub.storage.quota()}

    def backfill_spec_attachments(self, progress: Progress) -> JsonObject:
        return dataclasses.asdict(self._hub.backfill_spec_attachments(progress=_reported(progress)))

    def claims(
        self, scope: str | None, status: str | None, limit: int, after: str | None, *, oldest: bool
    ) -> JsonObject:
        page = self._hub.claims.list(scope, status, limit=limit, after=after, oldest=oldest)
        claims = [_claim(one) for one in page.claims]
        return {"claims": claims, "next_after": page.next_after, "has_more": page.has_more}

    def claim(self, scope: str, key: str) -> JsonObject:
        return dataclasses.asdict(self._hub.claims.show(scope, key))

    def resolve_claim(
        self, scope: str, key: str, version: int, verdict: str, reason: str, value: Any, response: JsonObject | None
    ) -> JsonObject:
        given = {"value": value, "response": response}
        return dataclasses.asdict(self._hub.claims.resolve(scope, key, version, verdict, reason, **given))

    def abandon_claim(self, scope: str, key: str, version: int, reason: str, *, force: bool) -> JsonObject:
        return dataclasses.asdict(self._hub.claims.abandon(scope, key, version, reason, force=force))

    def forget_claim(self, scope: str, key: str, version: int, reason: str) -> JsonObject:
        return dataclasses.asdict(self._hub.claims.forget(scope, key, version, reason))

    def purge_claims(self) -> JsonObject:
        return {"deleted_count": self._hub.claims.purge()}

    def audit(self, limit: int, after: str | None, only: AuditOnly) -> JsonObject:
        page = self._hub.audit.list(limit=limit, after=after, **only)
        entries = [dataclasses.asdict(one) for one in page.entries]
        return {"entries": entries, "next_after": page.next_after, "has_more": page.has_more}


def _reported(progress: Progress) -> Callable[[int, int], object]:
    """Return the progress that a hub reports to; nothing is asked for that nobody sees."""
    return no_progress if progress is hidden_progress else progress


def _claim(claim: ClaimSeen) -> JsonObject:
    """Convert a claim of a list, which has no outcome."""
    return {name: value for name, value in dataclasses.asdict(claim).items() if name != "outcome"}


def _about(details: AttachmentDetails) -> About:
    return {
        "title": details.title,
        "media_type": details.media_type,
        "expires_at": details.expires_at,
        "labels": details.labels,
        "meta": details.meta,
    }


def _shown(value: Any) -> JsonObject:
    """Convert a value of the client to the JSON it was read from, without empty fields other than labels."""
    found = {name: getattr(value, name) for name in value.__slots__}
    return {name: _plain(one) for name, one in found.items() if one is not False and one not in (None, "", {})}


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return list(value) if isinstance(value, tuple) else value
