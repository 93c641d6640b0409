"""Messages as Telegram Desktop exports them."""

from __future__ import annotations

from typing import Any

import pytest
from tests.hub.ingest.telegram.entry_checks import COLUMNS, METADATA, keys

from onceward.errors import InvalidInput
from onceward.hub.ingest.telegram import normalize_exported

CHAT: dict[str, Any] = {"name": "Kitchen", "type": "private_supergroup", "id": 1_234_567_890, "messages": []}
MESSAGE: dict[str, Any] = {
    "id": 7,
    "type": "message",
    "date": "2023-11-15T01:13:20",
    "date_unixtime": "1700000000",
    "from": "Ada L",
    "from_id": "user5",
    "text": "A thought",
    "text_entities": [{"type": "plain", "text": "A thought"}],
}


def exported(without: str = "", *, chat: dict[str, Any] = CHAT, **fields: Any) -> dict[str, Any]:
    sent = {name: value for name, value in (MESSAGE | fields).items() if name != without}
    payload = normalize_exported(chat, sent)
    assert payload is not None
    return payload


def metadata(without: str = "", **fields: Any) -> dict[str, Any]:
    found: dict[str, Any] = exported(without, **fields)["metadata"]
    return found


def refused_fields(chat: Any, message: Any) -> set[str]:
    with pytest.raises(InvalidInput) as refusal:
        normalize_exported(chat, message)
    return {name for name, _ in refusal.value.fields}


def test_all_fields_of_an_exported_message_are_kept() -> None:
    payload = exported(reply_to_message_id=6, forwarded_from="Grace", via_bot="@gif", edited_unixtime="1700000060")

    assert list(payload) == [name for name in COLUMNS if name in payload]
    assert list(payload["metadata"]) == [name for name in METADATA if name in payload["metadata"]]
    assert payload["author"] == "Ada L"
    assert payload["capture_text"] == "A thought"
    assert payload["external_ref"] == "tg:-1001234567890:7"
    assert payload["metadata"] == {
        "source_time": "2023-11-14T22:14:20.000000Z",
        "sent_at": "2023-11-14T22:13:20.000000Z",
        "chat_id": -1_001_234_567_890,
        "chat_type": "supergroup",
        "chat_title": "Kitchen",
        "message_id": 7,
        "sender_id": 5,
        "forwarded_from": "Grace",
        "reply_to_message_id": 6,
        "via_bot": "gif",
    }


@pytest.mark.parametrize(
    ("kind", "live_id"),
    [
        ("personal_chat", "5"),
        ("bot_chat", "5"),
        ("saved_messages", "5"),
        ("replies", "5"),
        ("private_group", "-5"),
        ("public_group", "-5"),
        ("private_supergroup", "-1000000000005"),
        ("public_supergroup", "-1000000000005"),
        ("private_channel", "-1000000000005"),
        ("public_channel", "-1000000000005"),
    ],
)
def test_a_chat_has_the_id_that_a_bot_sees(kind: str, live_id: str) -> None:
    assert keys(exported(chat={"type": kind, "id": 5}))[1] == f"tg:{live_id}:7"


def test_ids_over_32_bits_and_negative_ids_are_converted() -> None:
    assert keys(exported(chat={"type": "public_channel", "id": 2**40}))[1] == f"tg:{-(10**12 + 2**40)}:7"
    assert keys(exported(chat={"type": "public_channel", "id": -1_000_000_000_005}))[1] == "tg:-1000000000005:7"
    # A group's messages from before it became a supergroup are exported with numbers below zero.
    assert keys(exported(id=-999_999_990))[1] == "tg:-1001234567890:-999999990"


def test_ids_of_an_old_export_have_a_type_bit() -> None:
    group, user = {"type": "private_supergroup", "id": 2**33 + 5}, {"type": "personal_chat", "id": 2**32 + 5}

    assert keys(exported(chat=group, from_id=2**32 + 9))[1] == "tg:-1000000000005:7"
    assert keys(exported(chat=user, from_id=9))[1] == "tg:5:7"
    assert keys(exported(chat=group))[1] == f"tg:{-(10**12 + 2**33 + 5)}:7"
    assert keys(exported(chat=user, from_id=True))[1] == f"tg:{2**32 + 5}:7"


@pytest.mark.parametrize(
    ("sent", "live_id"),
    [
        ("user5", 5),
        ("chat5", -5),
        ("channel5", -1_000_000_000_005),
        (2**32 + 5, 5),
        (2**33 + 5, None),
        (True, None),
        (None, None),
        ("nobody", None),
    ],
)
def test_the_sender_has_the_id_that_a_bot_sees(sent: Any, live_id: int | None) -> None:
    assert metadata(from_id=sent).get("sender_id") == live_id


def test_a_signature_is_the_author() -> None:
    signed: dict[str, Any] = {"from": "News", "from_id": "channel5", "author": "Ada"}
    deleted: dict[str, Any] = {"from": None}

    assert exported(**signed)["author"] == "Ada"
    assert "author" not in exported(**deleted)


def test_the_exact_second_is_used_and_the_local_time_only_without_it() -> None:
    assert metadata(date="1999-01-01T00:00:00")["sent_at"] == "2023-11-14T22:13:20.000000Z"
    assert metadata("date_unixtime")["sent_at"] == "2023-11-15T01:13:20.000000Z"
    assert "source_time" not in metadata("date_unixtime", date=None)


def test_an_edit_in_1970_is_ignored() -> None:
    assert metadata("date_unixtime", edited="1970-01-01T01:00:00")["source_time"] == "2023-11-15T01:13:20.000000Z"


PIECES = [
    "🙂 See ",
    {"type": "text_link", "text": "this", "href": "https://a.example/"},
    " and ",
    {"type": "link", "text": "b.example/x"},
    {"type": "bold", "text": "!"},
]


@pytest.mark.parametrize("fields", [{"text": PIECES}, {"text": PIECES, "text_entities": []}], ids=["old", "empty"])
def test_a_text_in_pieces_is_joined_with_its_links(fields: dict[str, Any]) -> None:
    payload = exported("text_entities" if "text_entities" not in fields else "", **fields)

    assert payload["capture_text"] == "🙂 See this and b.example/x!"
    assert payload["url"] == "https://a.example/"
    assert payload["metadata"]["urls"] == ["https://a.example/", "b.example/x"]


def test_a_link_behind_empty_text_is_ignored() -> None:
    assert "url" not in exported(text_entities=[{"type": "text_link", "text": "", "href": "https://a.example/"}])


def test_text_entities_take_precedence_over_the_text() -> None:
    payload = exported(text="", text_entities=[{"type": "plain", "text": "All of "}, {"type": "italic", "text": "it"}])

    assert payload["capture_text"] == "All of it"


def test_a_message_without_text_is_stored() -> None:
    payload = exported("text_entities", text="", photo="photos/photo_1.jpg")

    assert keys(payload) == ("telegram_thought_v1", "tg:-1001234567890:7", None)
    assert payload["metadata"]["media"] == "photo"


def test_a_reply_to_a_message_of_another_chat_has_no_reply_id() -> None:
    assert "reply_to_message_id" not in metadata(reply_to_message_id=6, reply_to_peer_id="channel9")


def test_a_content_type_for_a_whole_archive_takes_precedence() -> None:
    chat, message = CHAT, MESSAGE | {"text": "https://a.example/", "text_entities": []}

    payload = normalize_exported(chat, message, "note")

    assert payload is not None
    assert payload["content_type"] == "note"
    assert keys(payload)[1] == "tg:-1001234567890:7"
    with pytest.raises(InvalidInput):
        normalize_exported(chat, message, "newsletter")


@pytest.mark.parametrize("kind", ["service", "unsupported"])
def test_a_message_without_content_is_ignored(kind: str) -> None:
    assert normalize_exported(CHAT, {"id": 7, "type": kind}) is None


WRONG: dict[str, tuple[Any, Any, set[str]]] = {
    "a chat that is none": (5, MESSAGE, {"chat"}),
    "a message that is none": (CHAT, [], {"message"}),
    "a chat without a type": ({"id": 5}, MESSAGE, {"chat.type"}),
    "a chat of another type": ({"id": 5, "type": "secret_chat"}, MESSAGE, {"chat.type"}),
    "a chat without an id": ({"type": "personal_chat"}, MESSAGE, {"chat.id"}),
    "a message without an id": (CHAT, {"type": "message", "text": "a"}, {"message.id"}),
    "a channel beyond all ids": ({"type": "public_channel", "id": 2**63 - 1}, MESSAGE, {"chat.id"}),
    "a message of another type": (CHAT, MESSAGE | {"type": "story"}, {"message.type"}),
    "true for an id": (CHAT, MESSAGE | {"id": True}, {"message.id"}),
    "a number for the text": (CHAT, {"id": 7, "text": 5}, {"message.text"}),
    "a number in the text": (CHAT, {"id": 7, "text": ["a", 5]}, {"message.text[1]"}),
    "a piece without words": (CHAT, {"id": 7, "text": [{"text": 5}]}, {"message.text[0].text"}),
    "a link to a number": (
        CHAT,
        {"id": 7, "text": [{"type": "text_link", "text": "a", "href": 5}]},
        {"message.text[0].href"},
    ),
    "no list of pieces": (CHAT, MESSAGE | {"text_entities": "x"}, {"message.text_entities"}),
    "NUL in a piece": (CHAT, {"id": 7, "text": ["a", "\0"]}, {"message.text[1]"}),
    "half a character": (CHAT, {"id": 7, "text": "\ud83d"}, {"message.text"}),
    "a time in words": (CHAT, MESSAGE | {"date_unixtime": "now"}, {"message.date_unixtime"}),
}


@pytest.mark.parametrize("case", WRONG)
def test_an_invalid_field_is_named(case: str) -> None:
    chat, message, places = WRONG[case]

    assert refused_fields(chat, message) == places


def test_a_rich_message_is_read_as_its_text() -> None:
    blocks = [{"type": "heading", "text": "Plan"}, {"type": "paragraph", "text": "Do it"}]

    assert exported("text", rich_message={"blocks": blocks})["capture_text"] == "Plan\nDo it"
