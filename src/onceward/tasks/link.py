"""Attachments that are elsewhere: a URL, or a path in a repository."""

from __future__ import annotations

import datetime
from collections.abc import Sequence

from onceward.blobs.media import is_allowed, settle_link
from onceward.blobs.media.settle import Source
from onceward.core.text import refused
from onceward.db.engine import Transaction
from onceward.db.request import RequestKey
from onceward.tasks import fields
from onceward.tasks.attachment import REPO, URL, Attachment
from onceward.tasks.fields import NewAttachment
from onceward.tasks.insert import Added, insert
from onceward.tasks.labels import normal_labels


def create_link_attachment(
    tx: Transaction,
    task_id: str,
    new: NewAttachment,
    *,
    external_url: str | None = None,
    repo_path: str | None = None,
    allowed_media_types: Sequence[str] = (),
    request: RequestKey | None = None,
) -> Added:
    """Attach a URL or a path: exactly one of the two. The same link may be attached more than once.

    A declared media type must be allowed, as that of an upload; one that only the name suggests is nobody's word.
    """
    if (external_url is None) == (repo_path is None):
        raise refused("external_url", "or repo_path is needed: one of them, and not both")
    fields.meta_text(new.meta)
    url = None if external_url is None else fields.web_url(external_url)
    path = None if repo_path is None else fields.repo_path(repo_path)
    media = settle_link(new.media_type, url or path or "")
    declared = media.media_type if media.source is Source.DECLARED else None
    if declared is not None and not is_allowed(declared, allowed_media_types):
        raise refused("media_type", f"{declared} is not allowed here")
    draft = Attachment(
        id="",
        task_id=task_id,
        kind=fields.normal_kind(new.kind),
        source_type=URL if path is None else REPO,
        title=fields.normal_title(new.title),
        filename=None,
        media_type=media.media_type,
        media_type_source=media.source,
        blob_id=None,
        external_url=url,
        repo_path=path,
        created_at="",
        updated_at="",
        expires_at=fields.expiry(new.expires_at, datetime.datetime.now(datetime.UTC)),
        meta=fields.said_meta(new.meta),
        labels=normal_labels(new.labels),
    )
    return insert(tx, draft, request)
