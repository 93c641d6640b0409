"""One message in both forms that Telegram has: as a bot receives it, and as it is exported."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import Any

# The Bot API's type of a chat, and what its id is made from the bare one, by the type that the export has for it.
CHATS = {
    "personal_chat": ("private", 0, 1),
    "bot_chat": ("private", 0, 1),
    "saved_messages": ("private", 0, 1),
    "private_group": ("group", 0, -1),
    "public_group": ("group", 0, -1),
    "private_supergroup": ("supergroup", 10**12, -1),
    "public_supergroup": ("supergroup", 10**12, -1),
    "private_channel": ("channel", 10**12, -1),
    "public_channel": ("channel", 10**12, -1),
}


@dataclass(frozen=True)
class Part:
    """A piece of a message's text. `href` is where a `text_link` leads."""

    text: str
    kind: str = "plain"
    href: str | None = None


@dataclass(frozen=True)
class SampleMessage:
    parts: tuple[Part, ...]
    chat_kind: str = "private_supergroup"
    chat_bare_id: int = 1_234_567_890
    message_id: int = 77
    date: int = 1_700_000_000
    edited: int | None = None
    first_name: str = "Ada"
    last_name: str = ""
    sender_id: int = 5
    reply_to: int | None = None
    forwarded_from: str | None = None
    via_bot: str | None = None
    media: str | None = None

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.parts)


# How each kind of media looks in the two forms.
MEDIA: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "photo": (
        {"photo": [{"file_id": "a", "width": 90, "height": 60}, {"file_id": "b", "width": 900, "height": 600}]},
        {"photo": "photos/photo_1.jpg", "photo_file_size": 5, "width": 900, "height": 600},
    ),
    "document": (
        {"document": {"file_id": "a", "file_name": "plan.pdf", "mime_type": "application/pdf"}},
        {
            "file": "(File not included. Change data exporting settings to download.)",
            "file_name": "plan.pdf",
            "mime_type": "application/pdf",
        },
    ),
    "animation": (
        {"animation": {"file_id": "a", "file_name": "cat.mp4"}, "document": {"file_id": "a", "file_name": "cat.mp4"}},
        {"file": "video_files/cat.mp4", "file_name": "cat.mp4", "media_type": "animation", "mime_type": "video/mp4"},
    ),
    "audio": (
        {"audio": {"file_id": "a", "performer": "Some Band", "title": "A Song", "file_name": "song.mp3"}},
        {
            "file": "files/song.mp3",
            "file_name": "song.mp3",
            "media_type": "audio_file",
            "performer": "Some Band",
            "title": "A Song",
        },
    ),
    "video": (
        {"video": {"file_id": "a", "file_name": "walk.mov", "duration": 3}},
        {"file": "video_files/walk.mov", "file_name": "walk.mov", "media_type": "video_file", "duration_seconds": 3},
    ),
    "video_note": (
        {"video_note": {"file_id": "a", "length": 240, "duration": 3}},
        {"file": "round.mp4", "media_type": "video_message"},
    ),
    "voice": (
        {"voice": {"file_id": "a", "duration": 3}},
        {"file": "voice.ogg", "media_type": "voice_message", "mime_type": "audio/ogg"},
    ),
    "sticker": (
        {"sticker": {"file_id": "a", "emoji": "🙂", "set_name": "Faces"}},
        {"file": "stickers/sticker.webp", "file_name": "sticker.webp", "media_type": "sticker", "sticker_emoji": "🙂"},
    ),
    "contact": (
        {"contact": {"phone_number": "15550100200", "first_name": "Grace", "last_name": "H"}},
        {"contact_information": {"first_name": "Grace", "last_name": "H", "phone_number": "+1 555 010 0200"}},
    ),
    "location": (
        {"location": {"latitude": 52.520008, "longitude": 13.404954}},
        {"location_information": {"latitude": 52.5200081, "longitude": 13.4049538}},
    ),
    "venue": (
        {
            "venue": {"location": {"latitude": 1, "longitude": -2.5}, "title": "The Pier", "address": "1 Shore Road"},
            "location": {"latitude": 1, "longitude": -2.5},
        },
        {
            "place_name": "The Pier",
            "address": "1 Shore Road",
            "location_information": {"latitude": 1.0, "longitude": -2.5},
        },
    ),
    "poll": (
        {"poll": {"id": "9", "question": "Soup?", "options": [{"text": "Yes", "voter_count": 1}, {"text": "No"}]}},
        {"poll": {"question": "Soup?", "answers": [{"text": "Yes", "voters": 1, "chosen": False}, {"text": "No"}]}},
    ),
    "checklist": (
        {"checklist": {"title": "Shopping", "tasks": [{"id": 1, "text": "Bread"}, {"id": 2, "text": "Salt"}]}},
        {"todo_list": {"title": "Shopping", "items": [{"id": 1, "text": "Bread"}, {"id": 2, "text": "Salt"}]}},
    ),
    "game": (
        {"game": {"title": "Blocks", "description": "Pile them", "photo": []}},
        {"game_title": "Blocks", "game_description": "Pile them"},
    ),
    "paid_media": ({"paid_media": {"star_count": 3, "paid_media": []}}, {"paid_stars_amount": 3}),
}


def units(text: str) -> int:
    return len(text.encode("utf-16-le")) // 2


def bot_api_form(sample: SampleMessage) -> dict[str, Any]:
    """The Message of the Bot API."""
    chat_type, shift, sign = CHATS[sample.chat_kind]
    message: dict[str, Any] = {
        "message_id": sample.message_id,
        "from": {"id": sample.sender_id, "is_bot": False, "first_name": sample.first_name},
        "chat": {"id": sign * (sample.chat_bare_id + shift), "type": chat_type, "title": "Kitchen"},
        "date": sample.date,
    }
    if sample.last_name:
        message["from"]["last_name"] = sample.last_name
    if sample.edited is not None:
        message["edit_date"] = sample.edited
    if sample.reply_to is not None:
        message["reply_to_message"] = {"message_id": sample.reply_to, "chat": message["chat"], "date": 1}
    if sample.forwarded_from is not None:
        name = {"type": "hidden_user", "date": 1, "sender_user_name": sample.forwarded_from}
        message["forward_origin"] = name
    if sample.via_bot is not None:
        message["via_bot"] = {"id": 9, "is_bot": True, "first_name": "Bot", "username": sample.via_bot}
    if sample.text:
        text, entities = ("text", "entities") if sample.media is None else ("caption", "caption_entities")
        message[text] = sample.text
        marks = _entities(sample.parts)
        if marks:
            message[entities] = marks
    if sample.media is not None:
        message |= MEDIA[sample.media][0]
    return message


def export_form(sample: SampleMessage, *, old: bool = False) -> tuple[dict[str, Any], dict[str, Any]]:
    """The chat and the message of `result.json`; an old one has neither `text_entities` nor the name of the file."""
    chat = {"name": "Kitchen", "type": sample.chat_kind, "id": sample.chat_bare_id}
    name = f"{sample.first_name} {sample.last_name}".strip()
    message: dict[str, Any] = {
        "id": sample.message_id,
        "type": "message",
        # Of a machine that is three hours ahead.
        "date": _local(sample.date + 3 * 3600),
        "date_unixtime": str(sample.date),
        "from": name or None,
        "from_id": f"user{sample.sender_id}",
    }
    if sample.edited is not None:
        message |= {"edited": _local(sample.edited + 3 * 3600), "edited_unixtime": str(sample.edited)}
    if sample.reply_to is not None:
        message["reply_to_message_id"] = sample.reply_to
    if sample.forwarded_from is not None:
        message["forwarded_from"] = sample.forwarded_from
    if sample.via_bot is not None:
        message["via_bot"] = f"@{sample.via_bot}"
    if sample.media is not None:
        message |= MEDIA[sample.media][1]
    pieces = [_piece(part) for part in sample.parts]
    plain = all(part.kind == "plain" for part in sample.parts)
    message["text"] = (
        sample.text if plain else [piece["text"] if piece["type"] == "plain" else piece for piece in pieces]
    )
    if not old:
        message["text_entities"] = pieces
    return chat, message


def _entities(parts: tuple[Part, ...]) -> list[dict[str, Any]]:
    entities = []
    offset = 0
    for part in parts:
        length = units(part.text)
        if part.kind != "plain" and length:
            entity = {"type": {"link": "url"}.get(part.kind, part.kind), "offset": offset, "length": length}
            entities.append(entity if part.href is None else entity | {"url": part.href})
        offset += length
    return entities


def _piece(part: Part) -> dict[str, Any]:
    piece = {"type": part.kind, "text": part.text}
    return piece if part.href is None else piece | {"href": part.href}


def _local(seconds: int) -> str:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S")
