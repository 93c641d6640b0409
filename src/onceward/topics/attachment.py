"""Attachments of a topic. What an attachment *is* follows from (topic, kind, key, dedupe_key), by a unique index.

Adding one inserts first and looks afterwards: whoever is refused by the index is answered with the row that is there.
The row and its event are one transaction, and a duplicate changes nothing, so it has no event.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from typing import cast

from sqlalchemy import bindparam, func, select, text

from onceward.core.canonical import Json, same_value
from onceward.core.text import compact, written
from onceward.db.clock import new_id, now_text
from onceward.db.engine import Transaction
from onceward.db.page import LIMIT_MAX, Page, page_of, place_in
from onceward.db.request import RequestKey
from onceward.db.tables import topic_attachments
from onceward.errors import InvalidInput, NotFound
from onceward.events.log import Event, NewEvent, append, event_of
from onceward.topics.identity import Identity, NewAttachment
from onceward.topics.topic import get_topic

ADDED = "topic.attachment_added"
UPDATED = "topic.attachment_updated"
# A row that refuses an insert and is gone before it is read was deleted in between; that does not go on for ever.
_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class Attachment:
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
    """What became of an attachment: `event_id` is None when nothing changed.

    `value_differs` says that the row that is there has another value than the one sent.
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

# One statement looks for the topic and the message and inserts: nothing can come between.
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
# The id of the last row of a page is the cursor.
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
    """Add an attachment, or find the one that is there. The same request again is answered as its first run was."""
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
    raise InvalidInput("the attachment is deleted as often as it is added; try again")


def update_attachment(
    tx: Transaction, topic_id: str, new: NewAttachment, request: RequestKey | None = None
) -> Attached:
    """Give the attachment that is there another value; `NotFound` when there is none.

    The same request again changes nothing more, even if somebody else has changed the value since.
    """
    if new.dedupe_key is None:
        raise InvalidInput("dedupe_key is needed to say which attachment is meant", (("dedupe_key", "is missing"),))
    identity = Identity.of(topic_id, new)
    there = _find(tx, identity, lock=True)
    # After the lock: a run of the same request that was still under way is over now.
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
    """The one attachment that these name, if it is there."""
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
) -> Page[Attachment]:
    """A page behind the cursor, the newest first; the empty key finds those without one."""
    get_topic(tx, topic_id)
    wanted = select(*_COLUMNS).where(_table.topic_id == topic_id)
    if kind is not None:
        wanted = wanted.where(_table.kind == kind)
    if key is not None:
        wanted = wanted.where(func.coalesce(_table.key, "") == key)
    if dedupe_key is not None:
        wanted = wanted.where(_table.dedupe_key == dedupe_key)
    if after:
        wanted = wanted.where(_table.id < place_in(after, _CURSOR)[0])
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
    # The value is the large part, and it has been written as text already.
    data = '{"attachment":' + attachment_json(attachment, value_text) + "}"
    (event_id,) = append(tx, [NewEvent(name, attachment.topic_id, "attachment", attachment.id, data)], request)
    return event_id


def attachment_json(attachment: Attachment, value_text: str | None = None) -> str:
    """An attachment as every answer and event shows it."""
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
