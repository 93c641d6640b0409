"""Reads messages as Telegram's Bot API sends them: a Message, alone or inside of an Update.

Fields that are not known here are passed over, because the Bot API grows; those that are read must have their type.
"""

from __future__ import annotations

from onceward.core.text import refused
from onceward.errors import InvalidInput
from onceward.ingest.date import source_time
from onceward.ingest.fields import Fields
from onceward.ingest.telegram.entry import Message
from onceward.ingest.telegram.media import live_media
from onceward.ingest.telegram.passage import Passage, marked
from onceward.ingest.telegram.rich import rich_passage

UPDATE_ID = "update_id"
# What of an update is a message. An edited one is the same message again, later.
MESSAGES = (
    "message",
    "edited_message",
    "channel_post",
    "edited_channel_post",
    "business_message",
    "edited_business_message",
    "guest_message",
)
_FORWARDED = frozenset({"forward_origin", "forward_from", "forward_sender_name", "forward_from_chat"})
# A message with one of these tells of something that happened in the chat. An export leaves them out too.
_SERVICE = frozenset({
    "boost_added", "channel_chat_created", "chat_background_set", "chat_owner_changed", "chat_owner_left",
    "chat_shared", "checklist_tasks_added", "checklist_tasks_done", "connected_website", "delete_chat_photo",
    "direct_message_price_changed", "forum_topic_closed", "forum_topic_created", "forum_topic_edited",
    "forum_topic_reopened", "general_forum_topic_hidden", "general_forum_topic_unhidden", "gift", "gift_upgrade_sent",
    "giveaway_completed", "giveaway_created", "group_chat_created", "left_chat_member",
    "message_auto_delete_timer_changed", "migrate_from_chat_id", "migrate_to_chat_id", "new_chat_members",
    "new_chat_photo", "new_chat_title", "paid_message_price_changed", "passport_data", "pinned_message",
    "poll_option_added", "poll_option_deleted", "proximity_alert_triggered", "refunded_payment", "successful_payment",
    "suggested_post_approval_failed", "suggested_post_approved", "suggested_post_declined", "suggested_post_paid",
    "suggested_post_refunded", "supergroup_chat_created", "unique_gift", "user_shared", "users_shared",
    "video_chat_ended", "video_chat_participants_invited", "video_chat_scheduled", "video_chat_started",
    "web_app_data", "write_access_allowed",
})  # fmt: skip


def is_update(sent: Fields) -> bool:
    return sent.has(UPDATE_ID) or any(sent.has(kind) for kind in MESSAGES)


def is_message(sent: Fields) -> bool:
    return sent.has("chat")


def read_update(sent: Fields) -> Message:
    """The one message that the update carries."""
    carried = [kind for kind in MESSAGES if sent.has(kind)]
    if not carried:
        raise InvalidInput(
            f"The update carries no message; one of {', '.join(MESSAGES)} is needed", (("message", "is missing"),)
        )
    if len(carried) > 1:
        raise InvalidInput(
            f"The update carries {len(carried)} messages; Telegram sends one at a time",
            tuple((kind, "is not the only message") for kind in carried),
        )
    return read_message(sent.within(carried[0]))


def read_message(sent: Fields) -> Message:
    chat = sent.within("chat")
    media = live_media(sent)
    passage = _passage(sent)
    if not passage.text and media.kind is None and not _SERVICE.isdisjoint(sent.sent):
        raise refused(sent.path or "message", "is a service message: it tells of the chat and has nothing to keep")
    author, sender_id = _sender(sent)
    return Message(
        passage=passage,
        chat_id=chat.number("id"),
        message_id=_message_id(sent),
        id_places=(chat.place("id"), sent.place("message_id")),
        sent_at=moment_at(sent, "date"),
        edited_at=moment_at(sent, "edit_date"),
        chat_type=chat.label("type"),
        chat_title=_name(chat),
        author=author,
        sender_id=sender_id,
        forwarded_from=_forwarded_from(sent),
        reply_to_message_id=sent.within("reply_to_message").number("message_id"),
        message_thread_id=sent.number("message_thread_id"),
        media_group_id=sent.label("media_group_id"),
        via_bot=sent.within("via_bot").label("username"),
        media=media,
    )


def moment_at(sent: Fields, name: str) -> str | None:
    """Unix seconds as the text that rows have; None for seconds of no year that a calendar has."""
    return source_time(sent.number(name))


def _message_id(sent: Fields) -> int | None:
    """None for an ephemeral message: its number in the chat is 0, as that of all others of its kind."""
    number = sent.number("message_id")
    return None if number == 0 and sent.has("ephemeral_message_id") else number


def _passage(sent: Fields) -> Passage:
    text, caption = sent.text("text"), sent.text("caption")
    if text:
        return marked(text, sent.each("entities"))
    if caption:
        return marked(caption, sent.each("caption_entities"))
    return rich_passage(sent, "rich_message")


def _sender(sent: Fields) -> tuple[str | None, int | None]:
    """Who wrote it. For a chat that writes under its own name `from` holds a stand-in, and a signature is a person."""
    chat, user = sent.within("sender_chat"), sent.within("from")
    sender = chat if chat.sent else user
    return sent.label("author_signature") or _name(sender), sender.number("id")


def _forwarded_from(sent: Fields) -> str | None:
    """The name of whom it was first from, in the form of today and in that of before Bot API 7.0."""
    if _FORWARDED.isdisjoint(sent.sent):
        return None
    origin = sent.within("forward_origin")
    return (
        _name(origin.within("sender_user"))
        or origin.label("sender_user_name")
        or _name(origin.within("sender_chat"))
        or _name(origin.within("chat"))
        or _name(sent.within("forward_from"))
        or sent.label("forward_sender_name")
        or _name(sent.within("forward_from_chat"))
    )


def _name(sent: Fields) -> str | None:
    """Of a user or of a chat, as every application of Telegram shows it."""
    title = sent.label("title")
    return title or " ".join(filter(None, (sent.label("first_name"), sent.label("last_name")))) or None
