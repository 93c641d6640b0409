"""From a message, in whichever form it came, to the payload of an insert: what it is, and by which keys it is known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate

from onceward.core.canonical import Json
from onceward.core.text import refused
from onceward.ingest.keys import Keys, link_keys, thought_keys
from onceward.ingest.payload import Payload, known
from onceward.ingest.telegram.address import Address, address_of, addresses
from onceward.ingest.telegram.media import NO_MEDIA, Media
from onceward.ingest.telegram.passage import Passage
from onceward.ingest.text import clean, sha256_hex
from onceward.ingest.url import canonical

SOURCE = "telegram"
LINK, THOUGHT, NOTE = "link", "thought", "note"
CONTENT_TYPES = (THOUGHT, NOTE, LINK)
# Far more than a message of Telegram holds; metadata has its limit, and no entry is lost over a text full of links.
_URLS_LENGTH_MAX = 8 * 1024


@dataclass(frozen=True, slots=True)
class Said:
    """What the caller says himself; it counts more than what the message says."""

    content_type: str | None = None
    title: str | None = None
    author: str | None = None
    metadata: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Message:
    """What is known of a message. `id_places` are the fields its ids came from, for a refusal to name."""

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


def payload_of(message: Message, said: Said) -> Payload:
    """Build the entry, its keys, and the reasons for both, without the fields that the message says nothing about.

    `InvalidInput` when it could not be recognised if it came again.
    """
    found = addresses(message.passage)
    address = found[0] if found else None
    if message.url is not None:
        address = address_of(message.url)
        if address is None:
            raise refused(message.url_place, "must be an http or https URL")
    content_type, reason = _classified(message, said, address)
    capture_text = message.passage.text
    clean_text = clean(capture_text)
    keys, key_reason = _keyed(message, content_type, address, clean_text)
    columns: dict[str, Json] = {
        "source": SOURCE,
        "content_type": content_type,
        "title": said.title,
        "author": said.author or message.author,
        "url": None if address is None else address.written,
        "url_canonical": None if address is None else canonical(address.full),
        "capture_text": capture_text if clean_text else None,
        "clean_text": clean_text,
        "content_hash": sha256_hex(clean_text) if clean_text else None,
        "external_ref": _external_ref(message),
    }
    return {
        **known(columns),
        "metadata": {**known(_metadata(message, found)), **said.metadata},
        "idempotency_policy_key": keys.policy_key,
        "idempotency_key_primary": keys.primary,
        "idempotency_key_secondary": keys.secondary,
        "reasons": [reason, key_reason],
    }


def _classified(message: Message, said: Said, address: Address | None) -> tuple[str, str]:
    if said.content_type == LINK and address is None:
        raise refused("content_type", "says link, and there is no http or https URL in the message")
    if said.content_type is not None:
        return said.content_type, f"It is a {said.content_type} because content_type says so."
    if address is None:
        return THOUGHT, "It is a thought because it has no URL; a note is one only if content_type says so."
    if message.url is not None:
        return LINK, f"It is a link because of {message.url_place}."
    return LINK, "It is a link because there is a URL in its text; the first one counts."


def _keyed(message: Message, content_type: str, address: Address | None, clean_text: str) -> tuple[Keys, str]:
    if content_type == LINK and address is not None:
        return link_keys(
            address.full
        ), "It is known by its URL, and by that without tracking, whoever sent it and where."
    for number, place in zip((message.chat_id, message.message_id), message.id_places, strict=True):
        if number is None:
            raise refused(place, f"is missing, and a {content_type} is known by its chat and message alone")
    keys = thought_keys(message.chat_id, message.message_id, clean_text)
    if keys.secondary is None:
        return keys, "It is known by its chat and message; without text there is no hint at the same one elsewhere."
    return keys, "It is known by its chat and message; its text is a hint at the same one elsewhere."


def _external_ref(message: Message) -> str | None:
    if message.chat_id is None or message.message_id is None:
        return None
    return f"tg:{message.chat_id}:{message.message_id}"


def _metadata(message: Message, found: list[Address]) -> dict[str, Json]:
    return {
        # Some exports give a message that was never edited the year 1970 for it.
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
