"""What the client gives back. The fields are those on the wire; times are moments with their zone, UTC."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

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
