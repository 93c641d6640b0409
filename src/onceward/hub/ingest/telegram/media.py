"""Media of a message: kind, file name and visible text, the same for the Bot API and for an export.

The bytes stay with Telegram, where the ids of the chat and of the message lead to them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from onceward.core.canonical import Json
from onceward.core.json_text import refused
from onceward.hub.ingest.normalize.fields import Fields

# Fields of the Bot API's Message, in order of priority. Two of them come with a second field for older programs: an
# animation with a document, a venue with a location.
_LIVE_KINDS = (
    "animation", "audio", "document", "live_photo", "paid_media", "photo", "sticker", "story", "video", "video_note",
    "voice", "checklist", "contact", "dice", "game", "poll", "venue", "location", "giveaway", "giveaway_winners",
    "invoice",
)  # fmt: skip
_ANY_LIVE_KIND = frozenset(_LIVE_KINDS)
# The names of the same kinds in Telegram Desktop's export.
_EXPORTED_TYPES = {
    "animation": "animation",
    "audio_file": "audio",
    "sticker": "sticker",
    "video_file": "video",
    "video_message": "video_note",
    "voice_message": "voice",
}
_EXPORTED_FIELDS = {
    "photo": "photo",
    "file": "document",
    "contact_information": "contact",
    "place_name": "venue",
    "location_information": "location",
    "poll": "poll",
    "todo_list": "checklist",
    "game_title": "game",
    "invoice_information": "invoice",
    "giveaway_information": "giveaway",
    "giveaway_results": "giveaway_winners",
    "paid_stars_amount": "paid_media",
}
_NAMED = frozenset({"animation", "audio", "document", "video"})
_NOT_A_DIGIT = re.compile(r"[^0-9]")
_DEGREES_MAX = 360


@dataclass(frozen=True, slots=True)
class Media:
    """Media of a message. `kind` is the Bot API's name; `text` is its visible text: a poll, a place, a name."""

    kind: str | None = None
    file_name: str | None = None
    text: str | None = None


NO_MEDIA = Media()


def live_media(message: Fields) -> Media:
    if _ANY_LIVE_KIND.isdisjoint(message.sent):
        return NO_MEDIA
    kind = next((kind for kind in _LIVE_KINDS if message.has(kind)), None)
    if kind is None:
        return NO_MEDIA
    if kind == "photo":
        # A photo is a list of sizes, not an object.
        return Media(kind)
    sent = message.within(kind)
    match kind:
        case "audio":
            text = _lines([sent.label("performer"), sent.label("title")])
        case "sticker":
            text = sent.label("emoji")
        case "checklist":
            text = _lines([sent.label("title"), *(task.label("text") for task in sent.each("tasks"))])
        case "contact":
            text = _contact(sent)
        case "game" | "invoice":
            text = sent.label("title")
        case "poll":
            text = _lines([sent.label("question"), *(option.label("text") for option in sent.each("options"))])
        case "venue":
            text = _lines([sent.label("title"), sent.label("address"), _place(sent.within("location"))])
        case "location":
            text = _place(sent)
        case _:
            text = None
    return Media(kind, sent.label("file_name") if kind in _NAMED else None, text)


def exported_media(message: Fields) -> Media:
    kind = _EXPORTED_TYPES.get(message.label("media_type") or "")
    if kind is None:
        kind = next((kind for field, kind in _EXPORTED_FIELDS.items() if field in message.sent), None)
    if kind is None:
        return NO_MEDIA
    match kind:
        case "audio":
            text = _lines([message.label("performer"), message.label("title")])
        case "sticker":
            text = message.label("sticker_emoji")
        case "checklist":
            todo = message.within("todo_list")
            text = _lines([todo.label("title"), *(task.label("text") for task in todo.each("items"))])
        case "contact":
            text = _contact(message.within("contact_information"))
        case "game":
            text = message.label("game_title")
        case "poll":
            poll = message.within("poll")
            text = _lines([poll.label("question"), *(answer.label("text") for answer in poll.each("answers"))])
        case "venue":
            place = _place(message.within("location_information"))
            text = _lines([message.label("place_name"), message.label("address"), place])
        case "location":
            text = _place(message.within("location_information"))
        case _:
            text = None
    return Media(kind, message.label("file_name") if kind in _NAMED else None, text)


def _lines(texts: Iterable[str | None]) -> str | None:
    return "\n".join(filter(None, texts)) or None


def _contact(sent: Fields) -> str | None:
    """Return the name and the digits of the phone number. Other characters differ between the two forms."""
    digits = _NOT_A_DIGIT.sub("", sent.text("phone_number") or "")
    return _lines([" ".join(filter(None, [sent.label("first_name"), sent.label("last_name")])), digits])


def _place(sent: Fields) -> str | None:
    """Return the coordinates, rounded to about a metre. Neither form is more precise than that."""
    latitude, longitude = _degrees(sent, "latitude"), _degrees(sent, "longitude")
    return None if latitude is None or longitude is None else f"{latitude:.5f}, {longitude:.5f}"


def _degrees(sent: Fields, name: str) -> float | None:
    value: Json = sent.sent.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not -_DEGREES_MAX <= value <= _DEGREES_MAX:
        raise refused(sent.place(name), f"must be a number of degrees from -{_DEGREES_MAX} to {_DEGREES_MAX}")
    return float(value)
