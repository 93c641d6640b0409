"""Content of an attachment: where its bytes are stored, and how they are read."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

from sqlalchemy import text

from onceward.errors import Expired, InvalidInput, NotFound, StoreUnavailable
from onceward.hub.blobs import BlobStore
from onceward.hub.blobs.folder import FolderBlobs
from onceward.hub.db.engine import Transaction
from onceward.hub.db.timestamps import now_text
from onceward.hub.tasks.attachment import MANAGED, TaskAttachment, get_attachment


@dataclass(frozen=True, slots=True)
class Content:
    """An attachment with the location, hash and size of its bytes."""

    attachment: TaskAttachment
    sha256: str
    size_bytes: int
    storage_backend: str
    blob_key: str

    def read(self, store: BlobStore, start: int = 0, end: int | None = None) -> Generator[bytes]:
        """Return the bytes from `start` up to `end`, in pieces.

        This call itself, not the first piece, raises `NotFound` if the store does not have the bytes, and
        `StoreUnavailable` if their number has changed.
        """
        if self.storage_backend != store.backend:
            raise NotFound(
                f"the content is in the blob store {self.storage_backend!r}, but this hub uses {store.backend!r}"
                " (hub.blobs)"
            )
        # Only for a folder: there it costs nothing, and another program may have truncated the file.
        if store.backend == FolderBlobs.backend and store.size(self.blob_key) not in {None, self.size_bytes}:
            raise StoreUnavailable(f"the content of {self.attachment.id} is damaged; run onceward admin fsck")
        return store.read(self.blob_key, start, end)


_BLOB = text("SELECT sha256, size_bytes, storage_backend, blob_key FROM blobs WHERE id = :id")


def open_content(tx: Transaction, attachment_id: str) -> Content:
    """Find the content of an attachment; `NotFound` if unknown, `Expired` if expired, `InvalidInput` for a link."""
    attachment = get_attachment(tx, attachment_id)
    if attachment.source_type != MANAGED:
        raise InvalidInput("this attachment is a link; its content is not stored here")
    if attachment.is_expired(now_text()):
        raise Expired(f"attachment {attachment_id} has expired")
    return Content(attachment, *tx.execute(_BLOB, {"id": attachment.blob_id}).one())
