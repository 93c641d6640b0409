"""The bytes of an attachment."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

from sqlalchemy import text

from onceward.blobs import BlobStore
from onceward.db.clock import now_text
from onceward.db.engine import Transaction
from onceward.errors import Expired, InvalidInput, NotFound, StoreUnavailable
from onceward.tasks.attachment import MANAGED, Attachment, get_attachment
from onceward.tasks.check import LOCAL


@dataclass(frozen=True, slots=True)
class Content:
    """Where the bytes lie, and what they are."""

    attachment: Attachment
    sha256: str
    size_bytes: int
    storage_backend: str
    blob_key: str

    def read(self, store: BlobStore, start: int = 0, end: int | None = None) -> Generator[bytes]:
        """The bytes from `start` up to `end`, in pieces. From this call: `NotFound` when the store does not have them, and
        `StoreUnavailable` when they are not as many as they were.
        """
        if self.storage_backend != store.backend:
            raise NotFound(f"the bytes lie in {self.storage_backend}, and this hub keeps its own in {store.backend}")
        # Only for a folder, where it costs nothing: there anybody may have cut a file short.
        if store.backend == LOCAL and store.size(self.blob_key) not in {None, self.size_bytes}:
            raise StoreUnavailable(f"the bytes of {self.attachment.id} are damaged; see onceward admin fsck")
        return store.read(self.blob_key, start, end)


_BLOB = text("SELECT sha256, size_bytes, storage_backend, blob_key FROM blobs WHERE id = :id")


def open_content(tx: Transaction, attachment_id: str) -> Content:
    """`NotFound` when there is no such attachment, `Expired` when its time is over, `InvalidInput` for a link."""
    attachment = get_attachment(tx, attachment_id)
    if attachment.source_type != MANAGED:
        raise InvalidInput("this attachment is a link; its content is not kept here")
    if attachment.is_expired(now_text()):
        raise Expired(f"the attachment {attachment_id} has expired")
    return Content(attachment, *tx.execute(_BLOB, {"id": attachment.blob_id}).one())
