"""Attachments of a topic. A unique index on (topic, kind, key, dedupe_key) defines their identity.

An indexed read recognises most duplicates without a lock. Adding an attachment inserts first. If the index refuses the
row, the existing row is read and returned. The row and its event are written in one transaction. A duplicate changes
nothing and has no event.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from dataclasses import astuple, dataclass
from typing import Any, cast

from sqlalchemy import func, select, text

from onceward.core.canonical import Json, same_value
from onceward.core.json_text import compact, written
from onceward.errors import InvalidInput, NotFound, OncewardError, TransactionConflict
from onceward.hub.db.append import Appending, EventSteps, MarkedEvent, NewEvent, marked
from onceward.hub.db.engine import Transaction
from onceward.hub.db.lookup import Lookup
from onceward.hub.db.page import LIMIT_MAX, RowPage, page_of, parse_cursor
from onceward.hub.db.raw_sql import RawStatement
from onceward.hub.db.request_key import RequestKey
from onceward.hub.db.tables import topic_attachments
from onceward.hub.db.timestamps import new_id, now_text
from onceward.hub.db.writer import BatchWork
from onceward.hub.events.log import Event, event_of
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

# One statement checks that the topics and messages exist, and inserts: no other transaction can come between. `place`
# is the position in the batch, and rows are inserted in that order.
_INSERT = """
    INSERT INTO topic_attachments (id, topic_id, kind, key, value_json, dedupe_key, source_message_id, created_at)
    SELECT new.id, topics.id, new.kind, new.key, new.value_json, new.dedupe_key, new.source_message_id, :created_at
    FROM {new} AS new JOIN topics ON topics.id = new.topic_id
    WHERE new.source_message_id IS NULL
       OR EXISTS (SELECT 1 FROM messages WHERE messages.topic_id = topics.id AND messages.id = new.source_message_id)
    ORDER BY new.place
    ON CONFLICT DO NOTHING
"""
_FIELDS = ("id", "topic_id", "kind", "key", "value_json", "dedupe_key", "source_message_id")
_NEW_SQLITE = ", ".join(f"json_extract(value, '$[{place}]') AS {name}" for place, name in enumerate(_FIELDS))
_INSERT_SQLITE = RawStatement(
    _INSERT.format(new=f"(SELECT key AS place, {_NEW_SQLITE} FROM json_each(:rows))")  # noqa: S608  # from constants
)
_NEW_POSTGRES = ", ".join(f"e.row ->> {place} AS {name}" for place, name in enumerate(_FIELDS))
_INSERT_POSTGRES = RawStatement(
    _INSERT.format(
        new=f"(SELECT e.place, {_NEW_POSTGRES} FROM"  # noqa: S608  # built from constants
        " json_array_elements(CAST(:rows AS json)) WITH ORDINALITY AS e(row, place))"
    )
)
# Which of these ids were inserted. On SQLite this is one row, because each row is a switch between threads.
_INSERTED_SQLITE = RawStatement("""
    SELECT json_group_array(id) FROM topic_attachments WHERE id IN (SELECT value FROM json_each(:ids))
""")
_INSERTED_POSTGRES = RawStatement("""
    SELECT CAST(coalesce(json_agg(id), '[]') AS text) FROM topic_attachments
    WHERE id IN (SELECT json_array_elements_text(CAST(:ids AS json)))
""")
_UPDATE = text("UPDATE topic_attachments SET value_json = :value_json, source_message_id = :source WHERE id = :id")
# The cursor is the id of the last row of a page.
_CURSOR = re.compile(r"att_[0-9a-z]{1,64}", re.ASCII)
_MESSAGE = text("SELECT 1 FROM messages WHERE topic_id = :topic_id AND id = :id")

# A literal '' in the statement, not a parameter: only then SQLite uses the unique index, which has the same expression.
_SHOWN = "id, topic_id, kind, key, value_json, dedupe_key, source_message_id, created_at"
_FIND_TEXT = f"""
    SELECT {_SHOWN} FROM topic_attachments
    WHERE topic_id = :topic_id AND kind = :kind AND coalesce(key, '') = :key AND dedupe_key = :dedupe_key
"""  # noqa: S608  # built from constants
_FIND = RawStatement(_FIND_TEXT)
_LOCK_ROW = text(f"{_FIND_TEXT} FOR NO KEY UPDATE")
# LATERAL with LIMIT: one search in the unique index for each question, never a join that reads the whole table.
FIND = Lookup(
    _FIND,
    f"""
    SELECT asked.place, found.*
    FROM json_array_elements(CAST(:asked AS json)) WITH ORDINALITY AS asked(row, place)
    CROSS JOIN LATERAL (
        SELECT {_SHOWN} FROM topic_attachments
        WHERE topic_id = asked.row ->> 'topic_id' AND kind = asked.row ->> 'kind'
          AND coalesce(key, '') = asked.row ->> 'key' AND dedupe_key = asked.row ->> 'dedupe_key'
        LIMIT 1
    ) AS found
    """,  # noqa: S608  # built from constants
)


@dataclass(frozen=True, slots=True)
class AttachmentSent:
    """An attachment to add, validated, with its identity and its request."""

    identity: Identity
    new: NewAttachment
    value_text: str
    request: RequestKey | None = None

    @classmethod
    def of(cls, topic_id: str, new: NewAttachment, request: RequestKey | None = None) -> AttachmentSent:
        """Validate an attachment. Raises `InvalidInput` or `TooLarge`."""
        return cls(Identity.of(topic_id, new), new, compact(cast("Json", new.value_json)), request)


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
        errors.TransactionConflict: Another run of the same request has committed first, or the same attachment was
            deleted during each attempt to add it.
    """
    (result,) = _attach_all(tx, [AttachmentSent.of(topic_id, new, request)])
    if isinstance(result, OncewardError):
        raise result
    return result


def _attach_steps(tx: Transaction, sent: Sequence[AttachmentSent]) -> EventSteps[Sequence[Attached | OncewardError]]:
    """Add attachments; return the result of each, or the error that refuses it."""
    results: list[Attached | OncewardError | None] = [_earlier(tx, one.request) for one in sent]
    added: dict[int, Attachment] = {}
    for _ in range(_ATTEMPTS):
        places = [place for place, result in enumerate(results) if result is None and place not in added]
        if not places:
            break
        at = now_text()
        made = {place: _made(sent[place], at) for place in places}
        inserted = _insert_all(tx, [(made[place], sent[place].value_text) for place in places], at)
        for place in places:
            if made[place].id in inserted:
                added[place] = made[place]
            else:
                results[place] = _existing_or_refusal(tx, sent[place])
    new = [_event(ADDED, attachment, sent[place]) for place, attachment in added.items()]
    ids = yield new
    for (place, attachment), event_id in zip(added.items(), ids, strict=True):
        results[place] = Attached(attachment, event_id)
    return [result or _deleted_meanwhile() for result in results]


_attach_all = Appending(_attach_steps)
# Sorted by the columns of the unique index, on which concurrent inserts wait for each other.
ATTACH = BatchWork("attach", _attach_steps, lambda sent: astuple(sent.identity))


def _earlier(tx: Transaction, request: RequestKey | None) -> Attached | None:
    done = event_of(tx, request)
    return None if done is None else Attached(_of_event(done), done.event_id)


def _made(sent: AttachmentSent, at: str) -> Attachment:
    new, identity = sent.new, sent.identity
    return Attachment(
        new_id("att"),
        identity.topic_id,
        new.kind,
        new.key,
        new.value_json,
        identity.dedupe_key,
        new.source_message_id,
        at,
    )


def _insert_all(tx: Transaction, rows: Sequence[tuple[Attachment, str]], at: str) -> Collection[str]:
    """Insert the rows that do not exist yet and whose topic and message exist; return their ids."""
    values = [
        (made.id, made.topic_id, made.kind, made.key, value_text, made.dedupe_key, made.source_message_id)
        for made, value_text in rows
    ]
    is_sqlite = tx.dialect.name == "sqlite"
    insert = _INSERT_SQLITE if is_sqlite else _INSERT_POSTGRES
    ids = [made.id for made, _ in rows]
    count = insert.count(tx, {"rows": json.dumps(values), "created_at": at})
    if count in {0, len(ids)}:
        return ids if count else ()
    which = _INSERTED_SQLITE if is_sqlite else _INSERTED_POSTGRES
    return frozenset(json.loads(which.rows(tx, {"ids": json.dumps(ids)})[0][0]))


def _existing_or_refusal(tx: Transaction, sent: AttachmentSent) -> Attached | OncewardError | None:
    """Return the existing attachment, or the reason why there is none; None if it was deleted in between."""
    there = _find(tx, sent.identity)
    try:
        if there is not None:
            if sent.new.source_message_id != there.source_message_id:
                _check_message(tx, sent.identity.topic_id, sent.new.source_message_id)
            return existing(there, sent)
        get_topic(tx, sent.identity.topic_id)
        _check_message(tx, sent.identity.topic_id, sent.new.source_message_id)
    except (NotFound, InvalidInput) as error:
        return error
    return None


def existing(there: Attachment, sent: AttachmentSent) -> Attached:
    """Return the result for an attachment that exists."""
    return Attached(there, None, value_differs=not same_value(there.value_json, sent.new.value_json))


def found_duplicate(rows: Sequence[Sequence[Any]], sent: AttachmentSent) -> Attached | None:
    """Return the result for the rows of `FIND`, or None if the attachment may be new or must be checked by the writer."""
    if not rows:
        return None
    there = _read(rows[0])
    # Whether another message exists is the writer's to check.
    return existing(there, sent) if sent.new.source_message_id in {None, there.source_message_id} else None


def _deleted_meanwhile() -> TransactionConflict:
    return TransactionConflict(
        f"the same attachment was deleted during each of {_ATTEMPTS} attempts to add it; try again"
    )


@Appending
def update_attachment(
    tx: Transaction, topic_id: str, new: NewAttachment, request: RequestKey | None = None
) -> EventSteps[Attached]:
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
    sent = AttachmentSent.of(topic_id, new, request)
    value_text = sent.value_text
    tx.execute(_UPDATE, {"id": there.id, "value_json": value_text, "source": source})
    changed = Attachment(
        there.id, topic_id, there.kind, there.key, new.value_json, there.dedupe_key, source, there.created_at
    )
    (event_id,) = yield [_event(UPDATED, changed, sent)]
    return Attached(changed, event_id)


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
        # PostgreSQL uses the index by kind only with the condition of that index.
        wanted = wanted.where(_table.kind == kind, text("id > ''"))
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
    asked = identity.columns()
    # SQLite has one writer at a time, so rows need no locks.
    rows = tx.execute(_LOCK_ROW, asked).all() if lock and tx.dialect.name != "sqlite" else _FIND.rows(tx, asked)
    return _read(rows[0]) if rows else None


def _read(row: Sequence[Any]) -> Attachment:
    topic_attachment = (*row[:4], json.loads(row[4]), *row[5:])
    return Attachment(*topic_attachment)


def _check_message(tx: Transaction, topic_id: str, message_id: str | None) -> None:
    if message_id is not None and tx.execute(_MESSAGE, {"topic_id": topic_id, "id": message_id}).scalar() is None:
        why = "is not a message of this topic"
        raise InvalidInput(f"source_message_id {why}", (("source_message_id", why),))


def _of_event(event: Event) -> Attachment:
    return Attachment(**json.loads(event.data)["attachment"])


def _event(name: str, attachment: Attachment, sent: AttachmentSent) -> NewEvent | MarkedEvent:
    # The value is the large part, and its text was already made.
    data = '{"attachment":' + attachment_json(attachment, sent.value_text) + "}"
    return marked([NewEvent(name, attachment.topic_id, "attachment", attachment.id, data)], sent.request)[0]


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
