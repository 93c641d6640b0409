"""Messages as the Bot API sends them."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from tests.hub.ingest.telegram.entry_checks import COLUMNS, METADATA, keys, refused_fields

from onceward.core.canonical import Json
from onceward.errors import InvalidInput
from onceward.hub.ingest.telegram import normalize_telegram

MESSAGE: dict[str, Any] = {
    "message_id": 7,
    "from": {"id": 5, "is_bot": False, "first_name": "Ada", "last_name": "L", "username": "ada"},
    "chat": {"id": -1_001_234, "type": "supergroup", "title": "Kitchen"},
    "date": 1_700_000_000,
    "text": "A thought",
}


def message(without: str = "", **fields: Any) -> dict[str, Any]:
    return normalize_telegram({name: value for name, value in (MESSAGE | fields).items() if name != without})


def metadata(without: str = "", **fields: Any) -> dict[str, Any]:
    found: dict[str, Any] = message(without, **fields)["metadata"]
    return found


@pytest.mark.parametrize(
    "kind",
    [
        "message",
        "edited_message",
        "channel_post",
        "edited_channel_post",
        "business_message",
        "edited_business_message",
        "guest_message",
    ],
)
def test_every_update_with_a_message_is_read_as_the_message(kind: str) -> None:
    update: dict[str, Json] = {"update_id": 1, kind: MESSAGE}

    payload = normalize_telegram(update)

    assert payload == normalize_telegram(MESSAGE) == normalize_telegram({kind: MESSAGE})
    assert list(payload) == [name for name in COLUMNS if name not in {"title", "url", "url_canonical"}]
    assert list(metadata()) == [name for name in METADATA if name in metadata()]
    assert keys(payload)[:2] == ("telegram_thought_v1", "tg:-1001234:7")


def test_all_fields_of_a_message_are_kept() -> None:
    payload = message(message_thread_id=3, reply_to_message=MESSAGE | {"message_id": 6}, via_bot={"username": "gif"})

    assert payload["author"] == "Ada L"
    assert payload["metadata"] == {
        "source_time": "2023-11-14T22:13:20.000000Z",
        "sent_at": "2023-11-14T22:13:20.000000Z",
        "chat_id": -1_001_234,
        "chat_type": "supergroup",
        "chat_title": "Kitchen",
        "message_id": 7,
        "message_thread_id": 3,
        "sender_id": 5,
        "reply_to_message_id": 6,
        "via_bot": "gif",
    }


def test_an_edit_is_the_same_message_in_a_later_version() -> None:
    update: dict[str, Json] = {
        "update_id": 2,
        "edited_message": MESSAGE | {"text": "Another thought", "edit_date": 1_700_000_060},
    }

    edited: dict[str, Any] = normalize_telegram(update)

    assert edited["idempotency_key_primary"] == message()["idempotency_key_primary"]
    assert edited["external_ref"] == message()["external_ref"]
    assert edited["metadata"]["source_time"] == "2023-11-14T22:14:20.000000Z" > metadata()["source_time"]


def test_the_callers_fields_may_be_beside_an_update_or_in_a_message() -> None:
    fields: dict[str, Json] = {"content_type": "note", "title": "T", "author": "Me", "metadata": {"chat_type": "x"}}
    linked = MESSAGE | {"text": "https://a.example/"}

    for payload in (
        normalize_telegram({"update_id": 1, "message": linked, **fields}),
        normalize_telegram(linked | fields),
    ):
        assert [payload[name] for name in ("content_type", "title", "author")] == ["note", "T", "Me"]
        assert keys(payload)[1] == "tg:-1001234:7"
        found = payload["metadata"]
        assert isinstance(found, dict)
        assert (found["chat_type"], found["chat_title"]) == ("x", "Kitchen")


def test_unknown_fields_are_ignored() -> None:
    assert message(new_thing={"a": [1]}, chat=MESSAGE["chat"] | {"is_forum": True, "color": 5}) == message()


def test_a_link_behind_text_is_found() -> None:
    entities = [
        {"type": "bold", "offset": 0, "length": 7},
        {"type": "text_link", "offset": 0, "length": 7, "url": "https://a.example/?utm_source=t"},
    ]

    payload = message(text="Read it", entities=entities)

    assert payload["content_type"] == "link"
    assert payload["url"] == "https://a.example/?utm_source=t"


def test_a_link_without_a_scheme_is_stored_as_written_and_identified_by_its_full_url() -> None:
    payload = message(text="See a.example/x", entities=[{"type": "url", "offset": 4, "length": 11}])

    assert payload["url"] == "a.example/x"
    assert payload["url_canonical"] == keys(payload)[1] == "https://a.example/x"
    assert payload["metadata"]["urls"] == ["a.example/x"]


def test_a_link_in_a_caption_is_found() -> None:
    entities = [{"type": "text_link", "offset": 3, "length": 2, "url": "https://a.example/"}]

    payload = message("text", photo=[{"file_id": "a"}], caption="🙂 it", caption_entities=entities)

    assert payload["url"] == "https://a.example/"
    assert payload["capture_text"] == "🙂 it"
    assert metadata("text", photo=[], caption="https://a.example/")["urls"] == ["https://a.example/"]


def test_a_message_without_text_is_stored_and_shares_no_hint() -> None:
    payload = message("text", photo=[{"file_id": "a"}], media_group_id="13")
    neighbour = message("text", photo=[{"file_id": "b"}], media_group_id="13", message_id=8)

    assert payload["content_type"] == "thought"
    assert payload.keys().isdisjoint({"capture_text", "clean_text", "content_hash"})
    assert keys(payload) == ("telegram_thought_v1", "tg:-1001234:7", None)
    assert keys(neighbour) == ("telegram_thought_v1", "tg:-1001234:8", None)
    assert (payload["metadata"]["media"], payload["metadata"]["media_group_id"]) == ("photo", "13")


def test_a_message_of_an_unknown_kind_is_stored() -> None:
    assert "media" not in metadata("text", hologram={"file_id": "a"})


USER = {"id": 9, "is_bot": False, "first_name": "Grace", "last_name": "H"}
FORWARDS: dict[str, tuple[dict[str, Any], str | None]] = {
    "of a user": ({"forward_origin": {"type": "user", "date": 1, "sender_user": USER}}, "Grace H"),
    "of a hidden user": ({"forward_origin": {"type": "hidden_user", "date": 1, "sender_user_name": "G"}}, "G"),
    "of a chat": ({"forward_origin": {"type": "chat", "date": 1, "sender_chat": {"id": -2, "title": "Club"}}}, "Club"),
    "of a channel": (
        {"forward_origin": {"type": "channel", "date": 1, "chat": {"id": -3, "title": "News"}, "message_id": 4}},
        "News",
    ),
    "of a kind that is not known yet": ({"forward_origin": {"type": "star", "date": 1}}, None),
    "of a user, before 7.0": ({"forward_from": USER, "forward_date": 1}, "Grace H"),
    "of a hidden user, before 7.0": ({"forward_sender_name": "G", "forward_date": 1}, "G"),
    "of a channel, before 7.0": (
        {"forward_from_chat": {"id": -3, "title": "News"}, "forward_from_message_id": 4},
        "News",
    ),
}


@pytest.mark.parametrize("case", FORWARDS)
def test_a_forward_names_its_origin(case: str) -> None:
    fields, name = FORWARDS[case]

    assert metadata(**fields).get("forwarded_from") == name
    assert keys(message(**fields)) == keys(message())


AUTHORS: dict[str, tuple[dict[str, Any], str | None, int | None]] = {
    "a user with one name": ({"from": {"id": 5, "first_name": " Ada "}}, "Ada", 5),
    "a deleted user": ({"from": {"id": 5, "first_name": ""}}, None, 5),
    "a channel": ({"from": None, "sender_chat": {"id": -1_009, "title": "News"}}, "News", -1_009),
    "a channel that signs": (
        {"from": None, "sender_chat": {"id": -1_009, "title": "News"}, "author_signature": "Ada"},
        "Ada",
        -1_009,
    ),
    "a group's anonymous administrator": (
        {"from": {"id": 1, "first_name": "Group"}, "sender_chat": {"id": -1_001_234, "title": "Kitchen"}},
        "Kitchen",
        -1_001_234,
    ),
    "nobody": ({"from": None}, None, None),
}


@pytest.mark.parametrize("case", AUTHORS)
def test_the_author_is_the_writer_of_the_message(case: str) -> None:
    fields, author, sender_id = AUTHORS[case]

    assert message(**fields).get("author") == author
    assert metadata(**fields).get("sender_id") == sender_id


def test_a_private_chat_is_named_after_the_other_person() -> None:
    assert metadata(chat={"id": 5, "type": "private", "first_name": "Ada", "last_name": "L"})["chat_title"] == "Ada L"


def test_a_rich_message_is_read_as_its_text() -> None:
    cells: list[Json] = [[{"text": "a", "is_header": True}, {"text": "b"}]]
    blocks: list[Json] = [
        {"type": "heading", "size": 1, "text": "Plan"},
        {"type": "paragraph", "text": ["See ", {"type": "url", "text": {"type": "bold", "text": "this"}, "url": "https://a.example/"}]},
        {"type": "list", "items": [{"blocks": [{"type": "paragraph", "text": "one"}]}]},
        {"type": "table", "cells": cells, "caption": "Numbers"},
        {"type": "photo", "photo": {"file_id": "x"}, "caption": {"text": "A view", "credit": "Ada"}},
        {"type": "blockquote", "blocks": [{"type": "mathematical_expression", "expression": "x^2"}]},
        {"type": "divider"},
    ]  # fmt: skip

    payload = message("text", rich_message={"blocks": blocks})

    assert payload["capture_text"] == "Plan\nSee this\none\na\nb\nNumbers\nA view\nAda\nx^2"
    assert payload["url"] == "https://a.example/"


def test_a_rich_message_that_is_nested_too_deeply_is_refused() -> None:
    block: dict[str, Json] = {"type": "paragraph", "text": "a"}
    text: Json = "a"
    rows: Json = []
    for _ in range(3_000):
        block = {"type": "blockquote", "blocks": [block]}
        text = {"type": "bold", "text": text}
        rows = [rows]

    for blocks in ([block], [{"type": "paragraph", "text": text}], [{"type": "table", "cells": rows}]):
        with pytest.raises(InvalidInput, match="nested"):
            message("text", rich_message={"blocks": blocks})


def test_an_ephemeral_message_has_no_id() -> None:
    ephemeral = MESSAGE | {"message_id": 0, "ephemeral_message_id": 12}

    assert refused_fields(ephemeral) == {"message_id"}
    assert "external_ref" not in normalize_telegram(ephemeral | {"text": "https://a.example/"})
    assert keys(message(message_id=0))[1] == "tg:-1001234:0"


def changed(path: str, value: Json) -> dict[str, Json]:
    """An update in which the field at the path has another value."""
    update: dict[str, Any] = {"update_id": 1, "message": copy.deepcopy(MESSAGE)}
    *parents, last = path.split(".")
    at = update
    for parent in parents:
        at = at.setdefault(parent, {})
    at[last] = value
    return update


WRONG_TYPES: list[tuple[str, Json]] = [
    ("message", 5),
    ("message.text", 5),
    ("message.text", "a\0"),
    ("message.text", "\udc00"),
    ("message.caption", []),
    ("message.entities", "x"),
    ("message.chat", [1]),
    ("message.chat.id", True),
    ("message.chat.id", 2.0),
    ("message.chat.id", 2**70),
    ("message.chat.title", 5),
    ("message.message_id", "seven"),
    ("message.date", "2023-11-14"),
    ("message.date", False),
    ("message.edit_date", []),
    ("message.from", "Ada"),
    ("message.from.id", {}),
    ("message.from.first_name", 5),
    ("message.sender_chat", 5),
    ("message.reply_to_message", 5),
    ("message.reply_to_message.message_id", []),
    ("message.message_thread_id", []),
    ("message.media_group_id", 13),
    ("message.forward_origin", "x"),
    ("message.forward_origin.sender_user", 5),
    ("message.via_bot.username", 5),
    ("message.document", "x"),
    ("message.document.file_name", 5),
    ("message.poll.options", "x"),
    ("message.location.latitude", "north"),
    ("message.venue.location", 5),
    ("content_type", "email"),
    ("metadata", "x"),
]


@pytest.mark.parametrize(("path", "value"), WRONG_TYPES, ids=[f"{path}={value!r}"[:50] for path, value in WRONG_TYPES])
def test_a_value_of_the_wrong_type_is_named_by_its_path(path: str, value: Json) -> None:
    sent = changed(path, value)
    if path.startswith("message.location"):
        sent = changed("message.location", {"latitude": value, "longitude": 1})

    assert refused_fields(sent) == {path}


def test_a_list_item_is_named_by_its_index() -> None:
    marks: list[Json] = [{"type": "bold", "offset": 0, "length": 1}, {"type": "url", "offset": "x", "length": 1}]

    assert refused_fields(changed("message.entities", marks)) == {"message.entities[1].offset"}
    assert refused_fields(changed("message.entities", [5])) == {"message.entities[0]"}
    assert refused_fields(changed("message.entities", [{"type": "url", "offset": 0}])) == {"message.entities[0].length"}
    assert refused_fields(changed("message.entities", [{"type": "text_link", "offset": 0, "length": 1}])) == {
        "message.entities[0].url"
    }


def test_a_thought_without_ids_is_refused_with_their_names() -> None:
    assert refused_fields(changed("message.chat.id", None)) == {"message.chat.id"}
    assert refused_fields(changed("message.message_id", None)) == {"message.message_id"}
    assert refused_fields({"update_id": 1, "message": {"text": "a"}}) == {"message.chat.id"}


@pytest.mark.parametrize("event", ["new_chat_members", "pinned_message", "forum_topic_created", "video_chat_started"])
def test_a_service_message_is_refused(event: str) -> None:
    sent = {name: value for name, value in MESSAGE.items() if name != "text"} | {event: [{"id": 1}]}

    assert refused_fields({"update_id": 1, "message": sent}) == {"message"}
    assert refused_fields(sent) == {"message"}


def test_a_message_with_content_is_stored_with_any_other_fields() -> None:
    assert message(gift={"gift": {}}) == message()
    assert metadata("text", gift={"gift": {}}, sticker={"emoji": "🙂"})["media"] == "sticker"


def test_an_update_without_a_message_or_with_two_is_refused() -> None:
    assert refused_fields({"update_id": 1, "poll_answer": {"poll_id": "1"}}) == {"message"}
    assert refused_fields({"update_id": 1, "message": MESSAGE, "channel_post": MESSAGE}) == {"message", "channel_post"}
