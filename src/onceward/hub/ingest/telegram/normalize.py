"""Normalization of Telegram messages, in any of their forms, into payloads."""

from __future__ import annotations

from collections.abc import Mapping

from onceward.core.canonical import Json
from onceward.core.json_text import refused
from onceward.errors import InvalidInput
from onceward.hub.ingest.normalize.caller_fields import caller_metadata, caller_time
from onceward.hub.ingest.normalize.fields import Fields, object_at
from onceward.hub.ingest.payload import Payload
from onceward.hub.ingest.telegram.bot_api import is_message, is_update, read_message, read_update
from onceward.hub.ingest.telegram.desktop_export import read_exported
from onceward.hub.ingest.telegram.entry import CONTENT_TYPES, SOURCE, TelegramMessage, TelegramOverrides, payload_of
from onceward.hub.ingest.telegram.linked_text import marked

# Fields that a caller may send with a message in any form.
_OVERRIDES = frozenset({"content_type", "title", "author", "metadata"})
_FORM = _OVERRIDES | {"text", "entities", "source"}
_FORM_SOURCE = frozenset({"system", "chat_id", "message_id", "url", "date", "edit_date"})
# How many unknown names a message lists, and how much of each.
_NAMES_SHOWN_MAX, _NAME_LENGTH_MAX = 10, 64


def normalize_telegram(sent: Mapping[str, Json]) -> Payload:
    """Return the payload of a message in one of three forms.

    `{text, source: {chat_id, message_id, url}}` is our own form; it may have Telegram's `entities` of the text, and
    `date` and `edit_date` in `source`. The other two are Telegram's: a whole update, or the message alone. Each may
    also have `content_type`, `title`, `author` and `metadata`, which override the values of the message. `InvalidInput`
    names the invalid field, or says that the message has no key by which a second copy could be recognised.
    """
    fields = object_at("", sent)
    overrides = _overrides(fields)
    return payload_of(_read(fields), overrides)


def normalize_exported(
    chat: Mapping[str, Json], message: Mapping[str, Json], content_type: str | None = None
) -> Payload | None:
    """Return the payload of a message exported by Telegram Desktop; None for one without content (a service message).

    `chat` is the object whose `messages` contain the message. The keys equal those of the same message received by a
    bot, wherever Telegram has one id for both: see `desktop_export`. `content_type` applies to a whole archive.
    """
    overrides = (
        TelegramOverrides() if content_type is None else _overrides(object_at("", {"content_type": content_type}))
    )
    read = read_exported(object_at("chat", chat), object_at("message", message))
    return None if read is None else payload_of(read, overrides)


def _read(fields: Fields) -> TelegramMessage:
    # Telegram's own objects have no `source`. With a `source` it is our form, and an update next to it is unknown.
    if not fields.has("source"):
        if is_update(fields):
            return read_update(fields)
        if is_message(fields):
            return read_message(fields)
    return _read_form(fields)


def _read_form(fields: Fields) -> TelegramMessage:
    _only(fields, _FORM)
    source = fields.within("source")
    _only(source, _FORM_SOURCE)
    system = source.label("system")
    if system is not None and system.lower() != SOURCE:
        raise refused(source.place("system"), f"must be {SOURCE}")
    text = fields.text("text")
    if text is None:
        raise refused("text", "is missing")
    # The URL is stored as sent, except for surrounding white space.
    url = (source.text("url") or "").strip() or None
    if url is None and not text.strip():
        raise refused("text", "must not be blank")
    return TelegramMessage(
        passage=marked(text, fields.each("entities")),
        chat_id=source.number("chat_id"),
        message_id=source.number("message_id"),
        url=url,
        sent_at=caller_time(source, "date"),
        edited_at=caller_time(source, "edit_date"),
    )


def _only(fields: Fields, known: frozenset[str]) -> None:
    unknown = sorted(fields.place(_shown(name)) for name in fields.sent if name not in known)[:_NAMES_SHOWN_MAX]
    if unknown:
        raise InvalidInput(
            f"unknown fields: {', '.join(unknown)}; allowed are {', '.join(sorted(known))}",
            tuple((place, "is not an allowed field") for place in unknown),
        )


def _shown(name: str) -> str:
    return name[:_NAME_LENGTH_MAX].encode("utf-8", "replace").decode()


def _overrides(fields: Fields) -> TelegramOverrides:
    content_type = fields.label("content_type")
    if content_type is not None and content_type.lower() not in CONTENT_TYPES:
        raise refused("content_type", f"must be one of {', '.join(CONTENT_TYPES)}")
    return TelegramOverrides(
        None if content_type is None else content_type.lower(),
        fields.label("title"),
        fields.label("author"),
        caller_metadata(fields),
    )
