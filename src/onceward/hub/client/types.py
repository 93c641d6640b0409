"""Values that the client returns. The fields are those of the HTTP API; times are datetimes in UTC."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TypedDict

from onceward.core.canonical import Json


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic."""

    id: str
    title: str
    created_at: datetime


@dataclass(frozen=True, slots=True)
class TopicMade:
    """A created topic, and the id of its event."""

    topic: Topic
    event_id: int | None


@dataclass(frozen=True, slots=True)
class Message:
    """A message in a topic."""

    id: str
    topic_id: str
    sender: str
    content: str
    created_at: datetime


@dataclass(frozen=True, slots=True)
class MessageMade:
    """A posted message, and the id of its event."""

    message: Message
    event_id: int | None


@dataclass(frozen=True, slots=True)
class Attachment:
    """A value attached to a topic.

    Attributes:
        kind: The kind of attachment.
        key: A name within the kind.
        value_json: The attached JSON object.
        dedupe_key: Attachments with the same kind, key and dedupe key are the same.
        source_message_id: The id of the message that the attachment comes from.
    """

    id: str
    topic_id: str
    kind: str
    key: str | None
    value_json: dict[str, Json]
    dedupe_key: str
    source_message_id: str | None
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Attached:
    """Result of attaching a value to a topic.

    Attributes:
        attachment: The attachment as it is stored.
        event_id: The id of its event, or None if nothing changed.
        value_differs: Whether the stored attachment has a value other than the one that was sent.
    """

    attachment: Attachment
    event_id: int | None
    value_differs: bool = False


@dataclass(frozen=True, slots=True)
class Event:
    """An event of the hub's log. `data` describes the change, such as `{"message": {…}}`."""

    event_id: int
    name: str
    topic_id: str | None
    entity_type: str
    entity_id: str
    data: dict[str, Json]
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Gap:
    """A gap in a requested range: retention deleted the events between `after_event_id` and `oldest_event_id`."""

    after_event_id: int
    oldest_event_id: int


@dataclass(frozen=True, slots=True)
class EventPage:
    """A page of the event log, oldest first. `next_after` is the cursor of the next page."""

    events: tuple[Event, ...]
    next_after: int
    has_more: bool
    gap: Gap | None = None


@dataclass(frozen=True, slots=True)
class Readiness:
    """Readiness of a hub. `checks` maps each store to `ok` or to its problem."""

    ready: bool
    checks: Mapping[str, str]


class About(TypedDict, total=False):
    """Optional description of an attachment of a task.

    Attributes:
        title: A title for people.
        media_type: The media type, such as `image/png`. By default, the hub detects it.
        expires_at: A time with its zone, such as `2026-12-31T12:00:00Z`, or a date, which means its end in UTC.
        labels: Labels.
        meta: Other metadata, a JSON object.
    """

    title: str | None
    media_type: str | None
    expires_at: str | None
    labels: Iterable[str]
    meta: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Task:
    """A task. `spec_id` is its specification: a URL, or a path in the repository."""

    id: str
    title: str
    spec_id: str | None
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class TaskAttachment:
    """An attachment of a task: bytes that the hub stores, or a link.

    Attributes:
        source_type: `managed_blob`, `external_url` or `repo_path`.
        expired: Whether its expiry has passed, so that garbage collection will delete it.
    """

    id: str
    task_id: str
    kind: str
    source_type: str
    title: str | None
    filename: str | None
    media_type: str | None
    media_type_source: str
    blob_id: str | None
    external_url: str | None
    repo_path: str | None
    sha256: str | None
    size_bytes: int | None
    meta: Mapping[str, Json]
    labels: tuple[str, ...]
    created_at: datetime
    updated_at: datetime
    expires_at: datetime | None
    expired: bool


@dataclass(frozen=True, slots=True)
class Downloaded:
    """Size and SHA-256 of a complete download."""

    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Collected:
    """Result of a garbage collection. After a dry run, `reclaimed_bytes` is the number that would be reclaimed."""

    candidate_count: int
    deleted_count: int
    failed_count: int
    reclaimed_bytes: int
    dry_run: bool
    expired_count: int
    orphan_count: int


@dataclass(frozen=True, slots=True)
class Damage:
    """A damaged blob.

    Attributes:
        problem: `missing`, `wrong-size`, `wrong-content`, or `elsewhere`: not in the place that `hub.blobs` names.
        attachments: The ids of the attachments that use the blob.
        quarantined: Whether the damaged bytes were moved aside.
    """

    blob_id: str
    sha256: str
    blob_key: str
    problem: str
    attachments: tuple[str, ...]
    quarantined: bool


@dataclass(frozen=True, slots=True)
class Backfilled:
    """Result of a backfill: the number of tasks with a `spec_id`, and of attachments added and skipped.

    `failed` has pairs of task id and reason.
    """

    task_count: int
    added_count: int
    skipped_count: int
    failed: tuple[tuple[str, str], ...]
