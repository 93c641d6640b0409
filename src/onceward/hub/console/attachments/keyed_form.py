"""Forms that create a task or an attachment. Each carries an idempotency key, so that sending it twice stores one.

A double click, or a reload of an error page, sends a form again. Its key becomes the request key of the row, which has a
unique index: the second request finds the row of the first, also while both run. A key that comes back with other
fields or another file is refused, because nothing would be stored for it.
"""

from __future__ import annotations

import datetime
import hashlib
import re
import secrets

from onceward.core.json_text import refused
from onceward.errors import Conflict
from onceward.hub.console.forms import Form
from onceward.hub.console.visit import Visit
from onceward.hub.db.request_key import RequestKey
from onceward.hub.tasks import NewTaskAttachment, TaskAttachment
from onceward.hub.tasks.validation import expiry, normal_filename, normal_kind, normal_labels, normal_title
from onceward.hub.web.upload import Upload

KEY = "idempotency_key"
# 128 bits cannot be guessed, nor made twice by accident.
_KEY_BYTES = 16
_KEY = re.compile(r"[A-Za-z0-9_-]{16,64}", re.ASCII)
_BETWEEN_LABELS = re.compile(r"[,\s]+")


def new_key() -> str:
    """Return a key for a form that is about to be shown."""
    return secrets.token_urlsafe(_KEY_BYTES)


def form_request_key(visit: Visit, form: Form) -> RequestKey:
    """Return the mark of the row that the form creates: the same whenever this visitor sends this form."""
    key = form.text(KEY)
    if not _KEY.fullmatch(key):
        raise refused(KEY, "is missing or not valid; reload the page, and send the form again")
    digest = hashlib.sha256(f"{visit.visitor.principal.name}\0console\0{key}".encode()).hexdigest()
    # It never ends. Nothing is known about an earlier run, so the row is searched for first.
    return RequestKey(digest)


def form_of(upload: Upload) -> Form:
    """Return the fields of an upload."""
    fields: dict[str, list[str]] = {}
    for name, value in upload.fields:
        fields.setdefault(name, []).append(value)
    return Form(fields)


def labels_of(text: str) -> tuple[str, ...]:
    """Return the labels in a field, between white space or commas."""
    return tuple(filter(None, _BETWEEN_LABELS.split(text)))


def attachment_of_form(form: Form, filename: str | None = None) -> NewTaskAttachment:
    """Return the attachment that a form describes."""
    return NewTaskAttachment(
        kind=form.text("kind"),
        title=form.text("title"),
        filename=filename,
        expires_at=form.text("expires_at"),
        labels=labels_of(form.text("labels")),
    )


def require_same(
    found: TaskAttachment,
    task_id: str,
    sent: NewTaskAttachment,
    *,
    sha256: str | None = None,
    external_url: str | None = None,
    repo_path: str | None = None,
) -> None:
    """Raise `Conflict` unless the attachment that the key has found is the one that was sent."""
    # From the beginning of time: a form that was in time when it was first sent may have expired by now.
    expires_at = expiry(sent.expires_at, datetime.datetime.min.replace(tzinfo=datetime.UTC))
    wanted = (
        task_id,
        normal_kind(sent.kind),
        normal_title(sent.title),
        normal_filename(sent.filename),
        normal_labels(sent.labels),
        expires_at,
        sha256,
        external_url,
        repo_path,
    )
    stored = (
        found.task_id,
        found.kind,
        found.title,
        found.filename,
        found.labels,
        found.expires_at,
        found.sha256,
        found.external_url,
        found.repo_path,
    )
    if wanted != stored:
        raise form_conflict(f"attachment {found.id}")


def form_conflict(what: str) -> Conflict:
    return Conflict(
        f"This form has already stored {what}, and now came with other fields or another file. Nothing was stored this"
        " time. Go back, reload the page, and send it again."
    )
