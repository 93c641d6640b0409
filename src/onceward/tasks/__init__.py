"""Tasks, and what is attached to them: files that are stored once, and links."""

import onceward.db.engine  # noqa: F401  # first: without the extra, its error says what to install
from onceward.tasks.attachment import (
    Attachment,
    delete_attachment,
    get_attachment,
    list_attachments,
    replace_labels,
)
from onceward.tasks.backfill import backfill_spec_attachments
from onceward.tasks.check import Damage, check_blobs
from onceward.tasks.collect import Collected, gc_blobs
from onceward.tasks.content import Content, open_content
from onceward.tasks.fields import NewAttachment
from onceward.tasks.link import create_link_attachment
from onceward.tasks.task import Task, create_task, delete_task, get_task, list_tasks
from onceward.tasks.upload import UploadRules, create_managed_attachment

__all__ = [
    "Attachment",
    "Collected",
    "Content",
    "Damage",
    "NewAttachment",
    "Task",
    "UploadRules",
    "backfill_spec_attachments",
    "check_blobs",
    "create_link_attachment",
    "create_managed_attachment",
    "create_task",
    "delete_attachment",
    "delete_task",
    "gc_blobs",
    "get_attachment",
    "get_task",
    "list_attachments",
    "list_tasks",
    "open_content",
    "replace_labels",
]
