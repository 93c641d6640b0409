"""What the client gives back. The fields are those on the wire; times are moments with their zone, UTC."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TypedDict

from onceward.core.canonical import Json


@dataclass(frozen=True, slots=True)
class Topic:
    id: str
    title: str
    created_at: datetime


@dataclass(frozen=True, slots=True)
class TopicMade:
    """A topic, and the event that says so."""

    topic: Topic
    event_id: int | None


@dataclass(frozen=True, slots=True)
class Message:
    id: str
    topic_id: str
    sender: str
    content: str
    created_at: datetime


@dataclass(frozen=True, slots=True)
class MessageMade:
    """A message, and the event that says so."""

    message: Message
    event_id: int | None


@dataclass(frozen=True, slots=True)
class Attachment:
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
    """What became of an attachment: `event_id` is None when nothing changed.

    `value_differs` says that the attachment that is there has another value than the one sent.
    """

    attachment: Attachment
    event_id: int | None
    value_differs: bool = False


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened. `data` is what the hub says about it, such as `{"message": {…}}`."""

    event_id: int
    name: str
    topic_id: str | None
    entity_type: str
    entity_id: str
    data: dict[str, Json]
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Gap:
    """Events behind `after_event_id` and before `oldest_event_id` were asked for and are no longer kept."""

    after_event_id: int
    oldest_event_id: int


@dataclass(frozen=True, slots=True)
class EventPage:
    """A page of the log, oldest first. `next_after` is the cursor for the next one."""

    events: tuple[Event, ...]
    next_after: int
    has_more: bool
    gap: Gap | None = None


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether the hub can work, and what each of its stores says: `ok`, or what is wrong."""

    ready: bool
    checks: Mapping[str, str]


class About(TypedDict, total=False):
    """What may be said of an attachment of a task, whatever it is.

    expires_at  a time with its zone, such as `2026-12-31T12:00:00Z`, or a date, which means its end in UTC
    meta        anything that is a JSON object
    """

    title: str | None
    media_type: str | None
    expires_at: str | None
    labels: Iterable[str]
    meta: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Task:
    id: str
    title: str
    spec_id: str | None
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class TaskAttachment:
    """Something that is attached to a task: bytes that the hub keeps, or a link.

    `source_type` is `managed_blob`, `external_url` or `repo_path`. `expired`: its time is over, and it will be collected.
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
    """The bytes that were written, all of them, and as they were stored."""

    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Collected:
    """What a collection found, and what became of it. After a dry run `reclaimed_bytes` is what it would be."""

    candidate_count: int
    deleted_count: int
    failed_count: int
    reclaimed_bytes: int
    dry_run: bool
    expired_count: int
    orphan_count: int


@dataclass(frozen=True, slots=True)
class Damage:
    """A blob that is `missing`, or has the `wrong-size`, the `wrong-content`, or a place `elsewhere`."""

    blob_id: str
    sha256: str
    blob_key: str
    problem: str
    attachments: tuple[str, ...]
    quarantined: bool


@dataclass(frozen=True, slots=True)
class Backfilled:
    """How many tasks have a `spec_id`, and what became of these. `failed` has the task and the reason."""

    task_count: int
    added_count: int
    skipped_count: int
    failed: tuple[tuple[str, str], ...]
