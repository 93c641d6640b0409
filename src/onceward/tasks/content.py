"""The bytes of an attachment."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import text

from onceward.db.clock import now_text
from onceward.db.engine import Transaction
from onceward.errors import Expired, InvalidInput
from onceward.tasks.attachment import MANAGED, Attachment, get_attachment


@dataclass(frozen=True, slots=True)
class Content:
    """Where the bytes lie, and what they are."""

    attachment: Attachment
    sha256: str
    size_bytes: int
    blob_key: str


_BLOB = text("SELECT sha256, size_bytes, blob_key FROM blobs WHERE id = :id")


def open_content(tx: Transaction, attachment_id: str) -> Content:
    """`NotFound` when there is no such attachment, `Expired` when its time is over, `InvalidInput` for a link."""
    attachment = get_attachment(tx, attachment_id)
    if attachment.source_type != MANAGED:
        raise InvalidInput("this attachment is a link; its content is not kept here")
    if attachment.is_expired(now_text()):
        raise Expired(f"the attachment {attachment_id} has expired")
    return Content(attachment, *tx.execute(_BLOB, {"id": attachment.blob_id}).one())
