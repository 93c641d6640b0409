"""`result.json`: one chat, all chats, and the rest of a truncated file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.hub.ingest.backfill.message_archives import exported, file, items, message, refs

from onceward.errors import InvalidInput
from onceward.hub.ingest.backfill.item import Item
from onceward.hub.ingest.backfill.normalizer import Normalizer
from onceward.hub.ingest.backfill.telegram_export import TelegramExport


def opened(folder: Path, content: str, normalizer: Normalizer | None = None) -> TelegramExport:
    return TelegramExport(file(folder, "result.json", content), normalizer or Normalizer())


@pytest.mark.parametrize("indent", [1, None], ids=["as exported", "in one line"])
def test_the_messages_of_a_chat_are_read_in_order(tmp_path: Path, indent: int | None) -> None:
    content = exported(message(1), message(2, type="service"), message(3, "Zürich 🌍"), indent=indent)
    source = opened(tmp_path, content)

    found = items(source)

    assert refs(found) == ["tg:5:1", None, "tg:5:3"]
    assert [item.where for item in found] == ["message 1 (id 1)", "message 2 (id 2)", "message 3 (id 3)"]
    for number, item in enumerate(found, 1):
        assert refs(items(source, item.position)) == refs(found[number:])


def test_every_chat_of_a_full_export_is_read_with_its_own_id(tmp_path: Path) -> None:
    chats = [
        {"name": "A", "type": "private_supergroup", "id": 7, "messages": [message(1), message(2)]},
        {"name": "B", "type": "private_group", "id": 8, "messages": []},
        {"name": "C", "type": "personal_chat", "id": 9, "messages": [message(1)]},
    ]
    whole = {
        "about": "An export.",
        "personal_information": {"user_id": 5, "messages": "no list"},
        "chats": {"about": "Chats.", "list": chats},
        "left_chats": {"about": "Left.", "list": [{"type": "public_channel", "id": 10, "messages": [message(4)]}]},
    }

    found = refs(items(opened(tmp_path, json.dumps(whole))))

    assert found == ["tg:-1000000000007:1", "tg:-1000000000007:2", "tg:9:1", "tg:-1000000000010:4"]


def test_an_invalid_message_fails_alone(tmp_path: Path) -> None:
    content = exported(message(1), message(2, text=7), message(3))
    found = refs(items(opened(tmp_path, content.replace('"id": 3', '"id": true'))))

    assert found[0] == "tg:5:1"
    assert [str(one).startswith("refused:") for one in found] == [False, True, True]


def test_messages_before_a_cut_are_found(tmp_path: Path) -> None:
    content = exported(message(1), message(2), message(3))
    source = opened(tmp_path, content[: content.index('"id": 3') + 10])
    found: list[Item] = []

    with pytest.raises(InvalidInput, match="is not valid JSON"):
        found.extend(source.items(None))

    assert refs(found) == ["tg:5:1", "tg:5:2"]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ({"messages": 5}, "messages must be a list"),
        ({"messages": None}, "messages must be a list"),
        ({"chats": []}, "chats must be an object"),
        ({"left_chats": {"list": {}}}, "list must be a list"),
        ({"chats": {"list": [{"messages": {}}]}}, "messages must be a list"),
    ],
    ids=str,
)
def test_a_file_that_is_not_an_export_is_refused_and_not_read_as_empty(
    tmp_path: Path, content: object, why: str
) -> None:
    with pytest.raises(InvalidInput, match=why):
        items(opened(tmp_path, json.dumps(content)))


def test_a_type_may_be_set_for_all_messages(tmp_path: Path) -> None:
    content = exported(message(1, "https://example.com/"))
    types = []
    for normalizer in (Normalizer(), Normalizer(content_type="note")):
        (item,) = items(opened(tmp_path, content, normalizer))
        payload = item.payload()
        assert payload is not None
        types.append(payload["content_type"])

    assert types == ["link", "note"]
