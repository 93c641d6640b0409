"""Attachments of a topic. A unique index on (topic, kind, key, dedupe_key) defines their identity.

Adding an attachment inserts first. If the index refuses the row, the existing row is read and returned. The row and its
event are written in one transaction. A duplicate changes nothing and has no event.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from typing import cast

from sqlalchemy import bindparam, func, select, text

from onceward.core.canonical import Json, same_value
from onceward.core.json_text import compact, written
from onceward.errors import InvalidInput, NotFound
from onceward.hub.db.engine import Transaction
from onceward.hub.db.page import LIMIT_MAX, RowPage, page_of, parse_cursor
from onceward.hub.db.request_key import RequestKey
from onceward.hub.db.tables import topic_attachments
from onceward.hub.db.timestamps import new_id, now_text
from onceward.hub.events.log import Event, NewEvent, append, event_of
from onceward.hub.topics.identity import Identity, NewAttachment
from onceward.hub.topics.topic import get_topic

ADDED = "topic.attachment_added"
UPDATED = "topic.attachment_updated"
# Attempts to add an attachment. A row may conflict with the insert and be deleted before it is read.
_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class Attachment:
    """A stored attachment."""

    id: str
    topic_id: str
    kind: str
    key: str | None
    value_json: dict[str, Json]
    dedupe_key: str
    source_message_id: str | None
    created_at: str


@dataclass(frozen=True, slots=True)
class Attached:
    """Result of adding or updating an attachment.

    Attributes:
        attachment: The stored attachment.
        event_id: The id of the event, or None if nothing changed.
        value_differs: Whether the stored value differs from the one that was sent.
    """

    attachment: Attachment
    event_id: int | None
    value_differs: bool = False


_table = topic_attachments.c
_COLUMNS = (
    _table.id,
    _table.topic_id,
    _table.kind,
    _table.key,
    _table.value_json,
    _table.dedupe_key,
    _table.source_message_id,
    _table.created_at,
)

# One statement checks that the topic and the message exist, and inserts: no other transaction can come between.
_INSERT = text("""
    INSERT INTO topic_attachments (id, topic_id, kind, key, value_json, dedupe_key, source_message_id, created_at)
    SELECT CAST(:id AS TEXT), topics.id, CAST(:kind AS TEXT), CAST(:key AS TEXT), CAST(:value_json AS TEXT),
           CAST(:dedupe_key AS TEXT), CAST(:source_message_id AS TEXT), CAST(:created_at AS TEXT)
    FROM topics
    WHERE topics.id = :topic_id AND (
        CAST(:source_message_id AS TEXT) IS NULL
        OR EXISTS (SELECT 1 FROM messages WHERE messages.topic_id = topics.id AND messages.id = :source_message_id)
    )
    ON CONFLICT DO NOTHING
""")
_UPDATE = text("UPDATE topic_attachments SET value_json = :value_json, source_message_id = :source WHERE id = :id")
# The cursor is the id of the last row of a page.
_CURSOR = re.compile(r"att_[0-9a-z]{1,64}", re.ASCII)
_MESSAGE = text("SELECT 1 FROM messages WHERE topic_id = :topic_id AND id = :id")

_FIND = select(*_COLUMNS).where(
    _table.topic_id == bindparam("topic_id"),
    _table.kind == bindparam("kind"),
    func.coalesce(_table.key, "") == bindparam("key"),
    _table.dedupe_key == bindparam("dedupe_key"),
)
_LOCK = _FIND.with_for_update(key_share=True)


def attach(tx: Transaction, topic_id: str, new: NewAttachment, request: RequestKey | None = None) -> Attached:
    """Add an attachment, or return the existing one. A repeated request gets the result of its first run.

    Args:
        tx: A write transaction.
        topic_id: The topic.
        new: The attachment.
        request: The key of the request, if it has one.

    Returns:
        The attachment, and the id of its event if it is new.

    Raises:
        errors.InvalidInput: A field cannot be accepted, or `source_message_id` is not a message of the topic.
        errors.TooLarge: The value is too large.
        errors.NotFound: The topic does not exist.
        errors.TransactionConflict: Another run of the same request has committed first.
    """
    identity = Identity.of(topic_id, new)
    done = event_of(tx, request)
    if done is not None:
        return Attached(_of_event(done), done.event_id)
    value_text = compact(cast("Json", new.value_json))
    for _ in range(_ATTEMPTS):
        attachment = Attachment(
            new_id("att"),
            topic_id,
            new.kind,
            new.key,
            new.value_json,
            identity.dedupe_key,
            new.source_message_id,
            now_text(),
        )
        row = {**_shown(attachment), "value_json": value_text}
        if tx.execute(_INSERT, row).rowcount == 1:
            return Attached(attachment, _append(tx, ADDED, attachment, value_text, request))
        there = _find(tx, identity)
        if there is not None:
            if new.source_message_id != there.source_message_id:
                _check_message(tx, topic_id, new.source_message_id)
            return Attached(there, None, value_differs=not same_value(there.value_json, new.value_json))
        get_topic(tx, topic_id)
        _check_message(tx, topic_id, new.source_message_id)
    raise InvalidInput(f"the same attachment was deleted during each of {_ATTEMPTS} attempts to add it; try again")


def update_attachment(
    tx: Transaction, topic_id: str, new: NewAttachment, request: RequestKey | None = None
) -> Attached:
    """Change the value of an existing attachment.

    A repeated request changes nothing, even if another request has changed the value since.

    Args:
        tx: A write transaction.
        topic_id: The topic.
        new: The attachment with its new value. Its `dedupe_key` is required.
        request: The key of the request, if it has one.

    Returns:
        The attachment, and the id of its event if something changed.

    Raises:
        errors.InvalidInput: A field cannot be accepted, or `source_message_id` is not a message of the topic.
        errors.TooLarge: The value is too large.
        errors.NotFound: The topic or the attachment does not exist.
        errors.TransactionConflict: Another run of the same request has committed first.
    """
    if new.dedupe_key is None:
        raise InvalidInput("dedupe_key is required to identify the attachment", (("dedupe_key", "is missing"),))
    identity = Identity.of(topic_id, new)
    there = _find(tx, identity, lock=True)
    # After the lock: a concurrent run of the same request has ended by now.
    done = event_of(tx, request)
    if done is not None:
        return Attached(_of_event(done), done.event_id)
    if there is None:
        get_topic(tx, topic_id)
        raise NotFound(f"topic {topic_id!r} has no attachment with this kind, key and dedupe_key; POST adds one")
    source = new.source_message_id if new.source_message_id is not None else there.source_message_id
    if source != there.source_message_id:
        _check_message(tx, topic_id, source)
    elif same_value(there.value_json, new.value_json):
        return Attached(there, None)
    value_text = compact(cast("Json", new.value_json))
    tx.execute(_UPDATE, {"id": there.id, "value_json": value_text, "source": source})
    changed = Attachment(
        there.id, topic_id, there.kind, there.key, new.value_json, there.dedupe_key, source, there.created_at
    )
    return Attached(changed, _append(tx, UPDATED, changed, value_text, request))


def find_attachment_by_dedupe_key(
    tx: Transaction, topic_id: str, kind: str, key: str | None, dedupe_key: str
) -> Attachment | None:
    """Return the attachment with this kind, key and dedupe key, or None."""
    return _find(tx, Identity(topic_id, kind, key or "", dedupe_key))


def list_attachments(
    tx: Transaction,
    topic_id: str,
    limit: int,
    after: str = "",
    *,
    kind: str | None = None,
    key: str | None = None,
    dedupe_key: str | None = None,
) -> RowPage[Attachment]:
    """Return a page of attachments after the cursor, newest first. An empty `key` matches attachments without a key."""
    get_topic(tx, topic_id)
    wanted = select(*_COLUMNS).where(_table.topic_id == topic_id)
    if kind is not None:
        wanted = wanted.where(_table.kind == kind)
    if key is not None:
        wanted = wanted.where(func.coalesce(_table.key, "") == key)
    if dedupe_key is not None:
        wanted = wanted.where(_table.dedupe_key == dedupe_key)
    if after:
        wanted = wanted.where(_table.id < parse_cursor(after, _CURSOR)[0])
    limit = min(limit, LIMIT_MAX)
    found = [_read(row) for row in tx.execute(wanted.order_by(_table.id.desc()).limit(limit + 1))]
    return page_of(found, limit, lambda attachment: attachment.id)


def _find(tx: Transaction, identity: Identity, *, lock: bool = False) -> Attachment | None:
    row = tx.execute(_LOCK if lock else _FIND, asdict(identity)).one_or_none()
    return None if row is None else _read(row)


def _read(row: tuple[str, str, str, str | None, str, str, str | None, str]) -> Attachment:
    return Attachment(*row[:4], json.loads(row[4]), *row[5:])


def _check_message(tx: Transaction, topic_id: str, message_id: str | None) -> None:
    if message_id is not None and tx.execute(_MESSAGE, {"topic_id": topic_id, "id": message_id}).scalar() is None:
        why = "is not a message of this topic"
        raise InvalidInput(f"source_message_id {why}", (("source_message_id", why),))


def _of_event(event: Event) -> Attachment:
    return Attachment(**json.loads(event.data)["attachment"])


def _append(tx: Transaction, name: str, attachment: Attachment, value_text: str, request: RequestKey | None) -> int:
    # The value is the large part, and its text was already made.
    data = '{"attachment":' + attachment_json(attachment, value_text) + "}"
    (event_id,) = append(tx, [NewEvent(name, attachment.topic_id, "attachment", attachment.id, data)], request)
    return event_id


def attachment_json(attachment: Attachment, value_text: str | None = None) -> str:
    """Return the JSON text of an attachment, the same in every response and event."""
    if value_text is None:
        value_text = compact(cast("Json", attachment.value_json))
    fields = (
        f"{written(name)}:{value_text if name == 'value_json' else written(value)}"
        for name, value in _shown(attachment).items()
    )
    return "{" + ",".join(fields) + "}"


def _shown(attachment: Attachment) -> dict[str, object]:
    # Not `asdict`, which copies the whole value.
    return {name: getattr(attachment, name) for name in Attachment.__slots__}
