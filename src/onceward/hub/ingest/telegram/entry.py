"""Payload of a Telegram message: its content type, columns, metadata and keys, from any form of input."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate

from onceward.core.canonical import Json
from onceward.core.json_text import refused
from onceward.hub.ingest.normalize.keys import EntryKeys, link_keys, thought_keys
from onceward.hub.ingest.normalize.text import clean, sha256_hex
from onceward.hub.ingest.normalize.url import canonical
from onceward.hub.ingest.payload import Payload, known
from onceward.hub.ingest.telegram.linked_text import Passage
from onceward.hub.ingest.telegram.links import Address, address_of, addresses
from onceward.hub.ingest.telegram.media import NO_MEDIA, Media

SOURCE = "telegram"
LINK, THOUGHT, NOTE = "link", "thought", "note"
CONTENT_TYPES = (THOUGHT, NOTE, LINK)
# More links than a Telegram message can contain. The size of metadata is limited, and must not fail an entry.
_URLS_LENGTH_MAX = 8 * 1024


@dataclass(frozen=True, slots=True)
class TelegramOverrides:
    """Values from the caller, which override those of the message."""

    content_type: str | None = None
    title: str | None = None
    author: str | None = None
    metadata: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TelegramMessage:
    """A parsed message. `id_places` are the names of the fields with its ids, for error messages."""

    passage: Passage
    chat_id: int | None = None
    message_id: int | None = None
    id_places: tuple[str, str] = ("source.chat_id", "source.message_id")
    url: str | None = None
    url_place: str = "source.url"
    sent_at: str | None = None
    edited_at: str | None = None
    chat_type: str | None = None
    chat_title: str | None = None
    author: str | None = None
    sender_id: int | None = None
    forwarded_from: str | None = None
    reply_to_message_id: int | None = None
    message_thread_id: int | None = None
    media_group_id: str | None = None
    via_bot: str | None = None
    media: Media = NO_MEDIA


def payload_of(message: TelegramMessage, overrides: TelegramOverrides) -> Payload:
    """Build the entry, its keys, and the reasons for both. Fields that the message does not have are left out.

    Raises `InvalidInput` if the message has no key by which a second copy could be recognised.
    """
    found = addresses(message.passage)
    address = found[0] if found else None
    if message.url is not None:
        address = address_of(message.url)
        if address is None:
            raise refused(message.url_place, "must be an http or https URL")
    content_type, reason = _classified(message, overrides, address)
    capture_text = message.passage.text
    clean_text = clean(capture_text)
    keys, key_reason = _keyed(message, content_type, address, clean_text)
    columns: dict[str, Json] = {
        "source": SOURCE,
        "content_type": content_type,
        "title": overrides.title,
        "author": overrides.author or message.author,
        "url": None if address is None else address.written,
        "url_canonical": None if address is None else canonical(address.full),
        "capture_text": capture_text if clean_text else None,
        "clean_text": clean_text,
        "content_hash": sha256_hex(clean_text) if clean_text else None,
        "external_ref": _external_ref(message),
    }
    return {
        **known(columns),
        "metadata": {**known(_metadata(message, found)), **overrides.metadata},
        "idempotency_policy_key": keys.policy_key,
        "idempotency_key_primary": keys.primary,
        "idempotency_key_secondary": keys.secondary,
        "reasons": [reason, key_reason],
    }


def _classified(message: TelegramMessage, overrides: TelegramOverrides, address: Address | None) -> tuple[str, str]:
    if overrides.content_type == LINK and address is None:
        raise refused("content_type", "is 'link', but the message has no http or https URL")
    if overrides.content_type is not None:
        return overrides.content_type, f"It is a {overrides.content_type} because content_type says so."
    if address is None:
        return THOUGHT, "It is a thought because it has no URL. Only content_type can make it a note."
    if message.url is not None:
        return LINK, f"It is a link because of {message.url_place}."
    return LINK, "It is a link because its text contains a URL; the first URL is used."


def _keyed(
    message: TelegramMessage, content_type: str, address: Address | None, clean_text: str
) -> tuple[EntryKeys, str]:
    if content_type == LINK and address is not None:
        return link_keys(
            address.full
        ), "It is identified by its URL, and by its URL without tracking; sender and chat do not matter."
    for number, place in zip((message.chat_id, message.message_id), message.id_places, strict=True):
        if number is None:
            raise refused(place, f"is missing; a {content_type} is identified only by its chat id and message id")
    keys = thought_keys(message.chat_id, message.message_id, clean_text)
    if keys.secondary is None:
        return keys, "It is identified by its chat id and message id. It has no text, so it has no secondary key."
    return keys, "It is identified by its chat id and message id; its text is a hint."


def _external_ref(message: TelegramMessage) -> str | None:
    if message.chat_id is None or message.message_id is None:
        return None
    return f"tg:{message.chat_id}:{message.message_id}"


def _metadata(message: TelegramMessage, found: list[Address]) -> dict[str, Json]:
    return {
        # In some exports a message that was never edited has 1970 as its edit time.
        "source_time": max(filter(None, (message.sent_at, message.edited_at)), default=None),
        "sent_at": message.sent_at,
        "chat_id": message.chat_id,
        "chat_type": message.chat_type,
        "chat_title": message.chat_title,
        "message_id": message.message_id,
        "message_thread_id": message.message_thread_id,
        "media_group_id": message.media_group_id,
        "sender_id": message.sender_id,
        "forwarded_from": message.forwarded_from,
        "reply_to_message_id": message.reply_to_message_id,
        "via_bot": message.via_bot,
        "media": message.media.kind,
        "media_name": message.media.file_name,
        "media_text": message.media.text,
        "urls": _urls(found),
    }


def _urls(found: list[Address]) -> list[Json]:
    lengths = accumulate(len(address.written) for address in found)
    return [address.written for address, length in zip(found, lengths, strict=True) if length <= _URLS_LENGTH_MAX]
