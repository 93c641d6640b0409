"""Messages of Telegram's Bot API: a Message, alone or inside an Update.

Unknown fields are ignored, because the Bot API grows. Fields that are read must have the right type.
"""

from __future__ import annotations

from onceward.core.json_text import refused
from onceward.errors import InvalidInput
from onceward.hub.ingest.normalize.dates import source_time
from onceward.hub.ingest.normalize.fields import Fields
from onceward.hub.ingest.telegram.entry import TelegramMessage
from onceward.hub.ingest.telegram.linked_text import Passage, marked
from onceward.hub.ingest.telegram.media import live_media
from onceward.hub.ingest.telegram.rich_text import rich_passage

UPDATE_ID = "update_id"
# Fields of an update that contain a message. An edited message is a later version of the same message.
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
# A message with one of these fields reports an event in the chat. Without content, it is refused, as in an export.
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


def read_update(sent: Fields) -> TelegramMessage:
    """Read the one message of an update."""
    carried = [kind for kind in MESSAGES if sent.has(kind)]
    if not carried:
        raise InvalidInput(
            f"the update has no message; it needs one of {', '.join(MESSAGES)}", (("message", "is missing"),)
        )
    if len(carried) > 1:
        raise InvalidInput(
            f"the update has {len(carried)} messages; send one message per update",
            tuple((kind, "is one of several messages; send only one") for kind in carried),
        )
    return read_message(sent.within(carried[0]))


def read_message(sent: Fields) -> TelegramMessage:
    chat = sent.within("chat")
    media = live_media(sent)
    passage = _passage(sent)
    if not passage.text and media.kind is None and not _SERVICE.isdisjoint(sent.sent):
        raise refused(sent.path or "message", "is a service message about the chat and has no content to store")
    author, sender_id = _sender(sent)
    return TelegramMessage(
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
    """Convert Unix seconds to the text form of stored rows; None if outside the years 1000 to 9999."""
    return source_time(sent.number(name))


def _message_id(sent: Fields) -> int | None:
    """Return the message's id; None for ephemeral messages, which all have the id 0."""
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
    """Return the author's name and the sender's id.

    If a chat writes under its own name, `from` is only a placeholder. A signature names the person who wrote.
    """
    chat, user = sent.within("sender_chat"), sent.within("from")
    sender = chat if chat.sent else user
    return sent.label("author_signature") or _name(sender), sender.number("id")


def _forwarded_from(sent: Fields) -> str | None:
    """Return the name of the original sender, in the current form and in that before Bot API 7.0."""
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
    """Return the name of a user or chat, as Telegram's applications show it."""
    title = sent.label("title")
    return title or " ".join(filter(None, (sent.label("first_name"), sent.label("last_name")))) or None
