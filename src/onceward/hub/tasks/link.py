"""Link attachments: a URL, or a path in a repository. Their content is not stored here."""

from __future__ import annotations

import datetime
from collections.abc import Sequence

from onceward.core.json_text import refused
from onceward.hub.db.append import Appending, EventSteps
from onceward.hub.db.engine import Transaction
from onceward.hub.db.request_key import RequestKey
from onceward.hub.media import is_allowed, settle_link
from onceward.hub.media.declared import Source
from onceward.hub.tasks import validation
from onceward.hub.tasks.attachment import REPO, URL, TaskAttachment
from onceward.hub.tasks.insert import Added, insert
from onceward.hub.tasks.validation import NewTaskAttachment, normal_labels


@Appending
def create_link_attachment(
    tx: Transaction,
    task_id: str,
    new: NewTaskAttachment,
    *,
    external_url: str | None = None,
    repo_path: str | None = None,
    allowed_media_types: Sequence[str] = (),
    request: RequestKey | None = None,
) -> EventSteps[Added]:
    """Attach either a URL or a path. The same link may be attached more than once.

    A declared media type must be allowed, as for an upload. A media type that only the name suggests is not checked.
    """
    if (external_url is None) == (repo_path is None):
        raise refused("external_url", "or repo_path is required, but not both")
    validation.meta_text(new.meta)
    url = None if external_url is None else validation.web_url(external_url)
    path = None if repo_path is None else validation.repo_path(repo_path)
    media = settle_link(new.media_type, url or path or "")
    declared = media.media_type if media.source is Source.DECLARED else None
    if declared is not None and not is_allowed(declared, allowed_media_types):
        raise refused("media_type", f"{declared} is not allowed")
    draft = TaskAttachment(
        id="",
        task_id=task_id,
        kind=validation.normal_kind(new.kind),
        source_type=URL if path is None else REPO,
        title=validation.normal_title(new.title),
        filename=None,
        media_type=media.media_type,
        media_type_source=media.source,
        blob_id=None,
        external_url=url,
        repo_path=path,
        created_at="",
        updated_at="",
        expires_at=validation.expiry(new.expires_at, datetime.datetime.now(datetime.UTC)),
        meta=validation.client_meta(new.meta),
        labels=normal_labels(new.labels),
    )
    return (yield from insert(tx, draft, request))
