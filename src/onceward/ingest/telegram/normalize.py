"""Makes entries of Telegram messages, in each form in which they come."""

from __future__ import annotations

from collections.abc import Mapping

from onceward.core.canonical import Json
from onceward.core.text import refused
from onceward.errors import InvalidInput
from onceward.ingest.fields import Fields, object_at
from onceward.ingest.payload import Payload
from onceward.ingest.said import metadata_said, time_said
from onceward.ingest.telegram.entry import CONTENT_TYPES, SOURCE, Message, Said, payload_of
from onceward.ingest.telegram.export import read_exported
from onceward.ingest.telegram.passage import marked
from onceward.ingest.telegram.update import is_message, is_update, read_message, read_update

# What a caller may say beside a message of any form.
_SAID = frozenset({"content_type", "title", "author", "metadata"})
_FORM = _SAID | {"text", "entities", "source"}
_FORM_SOURCE = frozenset({"system", "chat_id", "message_id", "url", "date", "edit_date"})
# Enough to see a mistake by.
_NAMES_SHOWN_MAX, _NAME_LENGTH_MAX = 10, 64


def normalize_telegram(sent: Mapping[str, Json]) -> Payload:
    """The entry of a message, in one of three forms.

    `{text, source: {chat_id, message_id, url}}` is our own; it may have Telegram's `entities` of the text, and `date`
    and `edit_date` in `source`. The others are Telegram's: a whole update, or the message alone. Beside each may stand
    `content_type`, `title`, `author` and `metadata`, which count more than what the message says. `InvalidInput` says
    what is wrong with which field, or that the message could not be known again if it came twice.
    """
    fields = object_at("", sent)
    said = _said(fields)
    return payload_of(_read(fields), said)


def normalize_exported(
    chat: Mapping[str, Json], message: Mapping[str, Json], content_type: str | None = None
) -> Payload | None:
    """The entry of a message of Telegram Desktop's export; None for one without content, such as a service message.

    `chat` is the object that holds the message in its `messages`. The keys are those of the same message when a bot
    received it, wherever Telegram has one number for it: see `export`. `content_type` is for all of an archive.
    """
    said = Said() if content_type is None else _said(object_at("", {"content_type": content_type}))
    read = read_exported(object_at("chat", chat), object_at("message", message))
    return None if read is None else payload_of(read, said)


def _read(fields: Fields) -> Message:
    # Nothing of Telegram's has a `source`, so that is looked for first: an update beside one is named as unknown.
    if not fields.has("source"):
        if is_update(fields):
            return read_update(fields)
        if is_message(fields):
            return read_message(fields)
    return _read_form(fields)


def _read_form(fields: Fields) -> Message:
    _only(fields, _FORM)
    source = fields.within("source")
    _only(source, _FORM_SOURCE)
    system = source.label("system")
    if system is not None and system.lower() != SOURCE:
        raise refused(source.place("system"), f"must be {SOURCE}")
    text = fields.text("text")
    if text is None:
        raise refused("text", "is missing")
    # Untouched but for what is around it.
    url = (source.text("url") or "").strip() or None
    if url is None and not text.strip():
        raise refused("text", "must not be blank")
    return Message(
        passage=marked(text, fields.each("entities")),
        chat_id=source.number("chat_id"),
        message_id=source.number("message_id"),
        url=url,
        sent_at=time_said(source, "date"),
        edited_at=time_said(source, "edit_date"),
    )


def _only(fields: Fields, known: frozenset[str]) -> None:
    unknown = sorted(fields.place(_shown(name)) for name in fields.sent if name not in known)[:_NAMES_SHOWN_MAX]
    if unknown:
        raise InvalidInput(
            f"Unknown: {', '.join(unknown)}. Known here: {', '.join(sorted(known))}",
            tuple((place, "is not known") for place in unknown),
        )


def _shown(name: str) -> str:
    return name[:_NAME_LENGTH_MAX].encode("utf-8", "replace").decode()


def _said(fields: Fields) -> Said:
    content_type = fields.label("content_type")
    if content_type is not None and content_type.lower() not in CONTENT_TYPES:
        raise refused("content_type", f"must be one of {', '.join(CONTENT_TYPES)}")
    return Said(
        None if content_type is None else content_type.lower(),
        fields.label("title"),
        fields.label("author"),
        metadata_said(fields),
    )
