"""Messages exported by Telegram Desktop (`result.json`), read so that they equal those of the Bot API.

Ids are the same in both if Telegram itself has one id for a message: in channels and supergroups. In private chats and
basic groups every account numbers messages for itself, so an export has the ids of the exporting account, and a bot has
its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from onceward.core.json_text import refused
from onceward.hub.ingest.normalize.dates import source_time
from onceward.hub.ingest.normalize.fields import Fields, object_at, storable, whole_number
from onceward.hub.ingest.telegram.entry import TelegramMessage
from onceward.hub.ingest.telegram.linked_text import Passage, Piece, joined
from onceward.hub.ingest.telegram.media import exported_media
from onceward.hub.ingest.telegram.rich_text import rich_passage

# The Bot API encodes the kind of a chat in the range of its id; the export names it.
_CHANNELS_START = 10**12
_PRIVATE, _GROUP, _SUPERGROUP, _CHANNEL = "private", "group", "supergroup", "channel"
_CHAT_TYPES = {
    "saved_messages": _PRIVATE,
    "replies": _PRIVATE,
    "verify_codes": _PRIVATE,
    "personal_chat": _PRIVATE,
    "bot_chat": _PRIVATE,
    "private_group": _GROUP,
    "public_group": _GROUP,
    "private_supergroup": _SUPERGROUP,
    "public_supergroup": _SUPERGROUP,
    "private_channel": _CHANNEL,
    "public_channel": _CHANNEL,
}
# The sender: `user5`, `chat5` for a basic group, `channel5` for a channel or a supergroup.
_PEER = re.compile(r"(?P<kind>user|chat|channel)(?P<id>[0-9]{1,16})")
_PEER_TYPES = {"user": _PRIVATE, "chat": _GROUP, "channel": _CHANNEL}
# Until 2021 ids had 32 bits, and exports set one higher bit for a user and another for a chat.
_OLD_USERS = range(2**32, 2**33)
_OLD_CHATS = range(2**33, 2**33 + 2**32)

MESSAGE = "message"
# Messages without content: events in a chat, and messages that the exporting program did not know.
_EMPTY_TYPES = frozenset({"service", "unsupported"})


def read_exported(chat: Fields, sent: Fields) -> TelegramMessage | None:
    """Read an exported message; None if it has no content."""
    kind = sent.label("type") or MESSAGE
    if kind in _EMPTY_TYPES:
        return None
    if kind != MESSAGE:
        raise refused(sent.place("type"), f"must be {MESSAGE}, {' or '.join(sorted(_EMPTY_TYPES))}")
    chat_type = _CHAT_TYPES.get(chat.label("type") or "")
    if chat_type is None:
        raise refused(chat.place("type"), f"must be one of {', '.join(_CHAT_TYPES)}")
    bare_id = _bare_id(chat, sent, _OLD_USERS if chat_type == _PRIVATE else _OLD_CHATS)
    return TelegramMessage(
        passage=_passage(sent),
        # Checked again, because the prefix of a Bot API id may make it too large.
        chat_id=None if bare_id is None else whole_number(chat.place("id"), _live_id(bare_id, chat_type)),
        message_id=sent.number("id"),
        id_places=(chat.place("id"), sent.place("id")),
        sent_at=_moment(sent, "date"),
        edited_at=_moment(sent, "edited"),
        chat_type=chat_type,
        chat_title=chat.label("name"),
        author=sent.label("author") or sent.label("from"),
        sender_id=_sender_id(sent),
        forwarded_from=sent.label("forwarded_from"),
        # With a peer id it is a reply to a message in another chat, which has its own ids.
        reply_to_message_id=None if sent.has("reply_to_peer_id") else sent.number("reply_to_message_id"),
        via_bot=(sent.label("via_bot") or "").removeprefix("@") or None,
        media=exported_media(sent),
    )


def _bare_id(chat: Fields, sent: Fields, old: range) -> int | None:
    bare_id = chat.number("id")
    if bare_id is not None and bare_id in old and _is_old(sent):
        return bare_id - old.start
    return bare_id


def _is_old(sent: Fields) -> bool:
    """Return whether the sender is a plain number, as in exports from the time of 32-bit ids."""
    value = sent.sent.get("from_id")
    return isinstance(value, int) and not isinstance(value, bool)


def _live_id(bare_id: int, chat_type: str) -> int:
    """Return the Bot API's id of the chat. A negative id is already in that form, and is returned unchanged."""
    if bare_id < 0 or chat_type == _PRIVATE:
        return bare_id
    return -bare_id if chat_type == _GROUP else -(_CHANNELS_START + bare_id)


def _sender_id(sent: Fields) -> int | None:
    """Return the sender's id; None also for a chat in an old export, which does not name the kind of chat."""
    value = sent.sent.get("from_id")
    if isinstance(value, str):
        found = _PEER.fullmatch(value)
        return None if found is None else _live_id(int(found["id"]), _PEER_TYPES[found["kind"]])
    if isinstance(value, int) and value in _OLD_USERS:
        return value - _OLD_USERS.start
    return None


def _moment(sent: Fields, name: str) -> str | None:
    """Return the time from Unix seconds if present, else from the text, which is local time and is taken as UTC."""
    seconds = sent.number(f"{name}_unixtime")
    return source_time(sent.text(name) if seconds is None else seconds)


def _passage(sent: Fields) -> Passage:
    """Return the text from `text_entities`, which has every piece, or in older exports from `text`."""
    if sent.has("rich_message"):
        return rich_passage(sent, "rich_message")
    name = "text_entities" if sent.items("text_entities") else "text"
    value = sent.sent.get(name)
    if isinstance(value, list):
        return joined(_pieces(sent, name))
    return Passage(sent.text(name) or "")


def _pieces(sent: Fields, name: str) -> Iterator[Piece]:
    for index, value in enumerate(sent.items(name)):
        place = f"{sent.place(name)}[{index}]"
        if isinstance(value, dict):
            piece = object_at(place, value)
            kind = value.get("type")
            target = piece.text("href") if kind == "text_link" else None
            yield Piece(piece.text("text") or "", kind == "link" or target is not None, target)
        else:
            yield Piece(storable(place, value))
