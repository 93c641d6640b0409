"""Data of a hub that is not running."""

from __future__ import annotations

from onceward.hub.blobs.open import open_blobs
from onceward.hub.config import data_folder
from onceward.hub.config.config import Config
from onceward.hub.tasks import NewAttachment, UploadRules, create_managed_attachment, create_task


def attach_file(config: Config, content: bytes) -> None:
    """Create a task with this file."""
    blobs = open_blobs(config.blobs_url)
    with data_folder.opened(config) as database:
        with database.write() as tx:
            task = create_task(tx, "with a file")
        with blobs.temp_file() as file:
            file.write(content)
            file.finish()
            create_managed_attachment(database, blobs, task.id, file, NewAttachment("other"), UploadRules())
