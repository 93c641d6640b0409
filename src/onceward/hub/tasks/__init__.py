"""Tasks and their attachments: files, each content stored once, and links.

Not here: the bytes themselves (`hub/blobs/`), and the routes (`hub/routes/tasks.py`).
Start with `upload.py`; `gc.py` deletes blobs that nothing references any more.
"""

import onceward.hub.db.engine  # noqa: F401  # first: without the extra, its error says what to install
from onceward.hub.tasks.attachment import (
    TaskAttachment,
    delete_attachment,
    get_attachment,
    labels_of_task,
    list_attachments,
    replace_labels,
)
from onceward.hub.tasks.content import Content, open_content
from onceward.hub.tasks.fsck import Damage, blob_totals, check_blobs
from onceward.hub.tasks.gc import Collected, gc_blobs
from onceward.hub.tasks.insert import Added
from onceward.hub.tasks.link import create_link_attachment
from onceward.hub.tasks.quota import OverQuota, PrincipalUsage, Quota, WrongCounter
from onceward.hub.tasks.spec_backfill import backfill_spec_attachments, spec_total
from onceward.hub.tasks.task import Task, create_task, delete_task, get_task, list_tasks
from onceward.hub.tasks.upload import UploadRules, create_managed_attachment
from onceward.hub.tasks.validation import NewTaskAttachment

# The names of these classes in 0.1.
Attachment = TaskAttachment
NewAttachment = NewTaskAttachment

__all__ = [
    "Added",
    "Attachment",
    "Collected",
    "Content",
    "Damage",
    "NewAttachment",
    "NewTaskAttachment",
    "OverQuota",
    "PrincipalUsage",
    "Quota",
    "Task",
    "TaskAttachment",
    "UploadRules",
    "WrongCounter",
    "backfill_spec_attachments",
    "blob_totals",
    "check_blobs",
    "create_link_attachment",
    "create_managed_attachment",
    "create_task",
    "delete_attachment",
    "delete_task",
    "gc_blobs",
    "get_attachment",
    "get_task",
    "labels_of_task",
    "list_attachments",
    "list_tasks",
    "open_content",
    "quota",
    "replace_labels",
    "spec_total",
    "task",
    "validation",
]
