"""Our own form: a text and its source."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from tests.hub.ingest.telegram.entry_checks import COLUMNS, keys, refused_fields

from onceward.core.canonical import Json
from onceward.core.json_text import compact
from onceward.errors import InvalidInput
from onceward.hub.ingest.telegram import normalize_telegram

IDS: dict[str, Json] = {"chat_id": -1001, "message_id": 7}


def form(text: str = "A thought", source: dict[str, Json] | None = None, **more: Json) -> dict[str, Any]:
    return normalize_telegram({"text": text, "source": IDS if source is None else source, **more})


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def test_a_text_without_a_url_is_a_thought_identified_by_chat_and_message() -> None:
    payload = form("  Two\n\tlines of\u00a0it ")

    assert list(payload) == [name for name in COLUMNS if name in payload]
    assert payload["metadata"] == {"chat_id": -1001, "message_id": 7}
    assert payload["source"] == "telegram"
    assert payload["content_type"] == "thought"
    assert payload["capture_text"] == "  Two\n\tlines of\u00a0it "
    assert payload["clean_text"] == "Two lines of it"
    assert payload["content_hash"] == sha256("Two lines of it")
    assert payload["external_ref"] == "tg:-1001:7"
    assert keys(payload) == ("telegram_thought_v1", "tg:-1001:7", sha256("Two lines of it"))
    assert payload.keys().isdisjoint({"title", "author", "url", "url_canonical"})


def test_a_text_with_a_url_is_a_link_identified_by_it() -> None:
    payload = form("Read https://Example.com/Path/?utm_source=x&b=2&a=1#frag, and https://b.example/")

    assert payload["content_type"] == "link"
    assert payload["url"] == "https://Example.com/Path/?utm_source=x&b=2&a=1#frag"
    assert payload["url_canonical"] == "https://example.com/Path/?utm_source=x&b=2&a=1"
    assert keys(payload) == (
        "telegram_link_v1",
        "https://example.com/Path/?utm_source=x&b=2&a=1",
        sha256("https://example.com/Path/?b=2&a=1"),
    )
    assert payload["external_ref"] == "tg:-1001:7"
    assert payload["metadata"]["urls"] == [payload["url"], "https://b.example/"]


def test_the_url_of_the_source_takes_precedence_over_those_of_the_text() -> None:
    payload = form("See https://a.example/", {**IDS, "url": " https://b.example/x "})

    assert payload["url"] == "https://b.example/x"
    assert keys(payload)[1] == "https://b.example/x"
    assert payload["metadata"]["urls"] == ["https://a.example/"]
    assert any("source.url" in reason for reason in payload["reasons"])


def test_a_url_is_stored_as_sent() -> None:
    payload = form("Some words", {"url": "HTTPS://Example.com/a  b/%7e#c"})

    assert payload["url"] == "HTTPS://Example.com/a  b/%7e#c"
    assert payload["url_canonical"] == keys(payload)[1] == "https://example.com/a%20%20b/~"


def test_a_link_needs_no_ids_and_no_text() -> None:
    without_ids = form("https://a.example/", {})
    without_words = form("", {"url": "https://a.example/"})

    assert normalize_telegram({"text": "https://a.example/"}) == without_ids
    assert keys(without_ids) == keys(without_words)
    assert "external_ref" not in without_ids.keys() | without_words.keys()


@pytest.mark.parametrize("asked", ["thought", "note", " Note "])
def test_a_message_with_a_url_is_a_thought_or_a_note_on_request(asked: str) -> None:
    payload = form("Not the link https://a.example/ but the thought", content_type=asked)

    assert payload["content_type"] == asked.strip().lower()
    assert keys(payload)[:2] == ("telegram_thought_v1", "tg:-1001:7")
    assert payload["url"] == "https://a.example/"
    assert "content_type" in payload["reasons"][0]


def test_the_callers_fields_take_precedence_over_the_message() -> None:
    payload = form(
        title=" T ",
        author="Ada",
        metadata={"chat_title": "Mine", "project": {"name": "x"}, "source_time": 1_700_000_000},
    )

    assert (payload["title"], payload["author"]) == ("T", "Ada")
    assert payload["metadata"]["chat_title"] == "Mine"
    assert payload["metadata"]["project"] == {"name": "x"}
    assert payload["metadata"]["source_time"] == "2023-11-14T22:13:20.000000Z"


def test_the_time_of_an_edit_is_the_version_of_the_content() -> None:
    payload = form(source={**IDS, "date": 1_700_000_000, "edit_date": "2023-11-15T00:00:00+01:00"})

    assert payload["metadata"]["sent_at"] == "2023-11-14T22:13:20.000000Z"
    assert payload["metadata"]["source_time"] == "2023-11-14T23:00:00.000000Z"


def test_entities_may_be_sent_with_the_text() -> None:
    marks: list[Json] = [{"type": "text_link", "offset": 2, "length": 4, "url": "https://a.example/"}]

    assert form("🙂here", entities=marks)["url"] == "https://a.example/"


def test_ids_give_the_same_key_as_numbers_and_as_text_and_may_be_0() -> None:
    large = 2**52 - 1

    assert keys(form(source={"chat_id": "5", "message_id": " 6 "})) == keys(
        form(source={"chat_id": 5, "message_id": 6})
    )
    assert keys(form(source={"chat_id": 0, "message_id": "0"}))[1] == "tg:0:0"
    assert keys(form(source={"chat_id": -large, "message_id": large}))[1] == f"tg:{-large}:{large}"
    assert form(source={"chat_id": "-5", "message_id": 6})["metadata"]["chat_id"] == -5


WRONG: dict[str, tuple[Any, set[str]]] = {
    "nothing": ({}, {"text"}),
    "no text": ({"source": IDS}, {"text"}),
    "null for the text": ({"text": None, "source": IDS}, {"text"}),
    "a blank text": ({"text": " \n", "source": IDS}, {"text"}),
    "a number for the text": ({"text": 5, "source": IDS}, {"text"}),
    "NUL in the text": ({"text": "a\0", "source": IDS}, {"text"}),
    "half a character in the text": ({"text": "a\ud83d", "source": IDS}, {"text"}),
    "no source": ({"text": "a"}, {"source.chat_id"}),
    "no chat": ({"text": "a", "source": {"message_id": 1}}, {"source.chat_id"}),
    "no message": ({"text": "a", "source": {"chat_id": 1}}, {"source.message_id"}),
    "null for an id": ({"text": "a", "source": {"chat_id": 1, "message_id": None}}, {"source.message_id"}),
    "a blank id": ({"text": "a", "source": {"chat_id": 1, "message_id": " "}}, {"source.message_id"}),
    "words for an id": ({"text": "a", "source": {"chat_id": "@me", "message_id": 1}}, {"source.chat_id"}),
    "true for an id": ({"text": "a", "source": {"chat_id": True, "message_id": 1}}, {"source.chat_id"}),
    "a fraction for an id": ({"text": "a", "source": {"chat_id": 1, "message_id": 1.5}}, {"source.message_id"}),
    "an id of too many digits": ({"text": "a", "source": {"chat_id": 10**5000, "message_id": 1}}, {"source.chat_id"}),
    "a text of too many digits": (
        {"text": "a", "source": {"chat_id": "9" * 5000, "message_id": 1}},
        {"source.chat_id"},
    ),
    "other digits": ({"text": "a", "source": {"chat_id": "\u0665", "message_id": 1}}, {"source.chat_id"}),
    "a list for the source": ({"text": "a", "source": []}, {"source"}),
    "an unknown field": ({"text": "a", "source": IDS, "txt": 1, "Text": 2}, {"txt", "Text"}),
    "an unknown field of the source": ({"text": "a", "source": {**IDS, "chatid": 1}}, {"source.chatid"}),
    "ids outside of the source": ({"text": "a", "chat_id": 1, "message_id": 2}, {"chat_id", "message_id"}),
    "another system": ({"text": "a", "source": {**IDS, "system": "email"}}, {"source.system"}),
    "no URL in source.url": ({"text": "a", "source": {**IDS, "url": "not one"}}, {"source.url"}),
    "another scheme": ({"text": "a", "source": {**IDS, "url": "ftp://a.example/"}}, {"source.url"}),
    "a script": ({"text": "a", "source": {**IDS, "url": "javascript:alert(1)"}}, {"source.url"}),
    "a link without a URL": ({"text": "a", "source": IDS, "content_type": "link"}, {"content_type"}),
    "another content type": ({"text": "a", "source": IDS, "content_type": "newsletter"}, {"content_type"}),
    "a number for the content type": ({"text": "a", "source": IDS, "content_type": 1}, {"content_type"}),
    "a list for the title": ({"text": "a", "source": IDS, "title": []}, {"title"}),
    "a list for the metadata": ({"text": "a", "source": IDS, "metadata": []}, {"metadata"}),
    "NUL in the metadata": ({"text": "a", "source": IDS, "metadata": {"b": ["\0"]}}, {"metadata"}),
    "NUL in a name of the metadata": ({"text": "a", "source": IDS, "metadata": {"b": {"\0": 1}}}, {"metadata"}),
    "half a character in the metadata": ({"text": "a", "source": IDS, "metadata": {"b": "\ud800"}}, {"metadata"}),
    "a time that is none": ({"text": "a", "source": {**IDS, "date": "soon"}}, {"source.date"}),
    "true for a time": ({"text": "a", "source": {**IDS, "edit_date": True}}, {"source.edit_date"}),
    "a version that is none": (
        {"text": "a", "source": IDS, "metadata": {"source_time": "x"}},
        {"metadata.source_time"},
    ),
    "an update beside a source": ({"update_id": 1, "text": "a", "source": IDS}, {"update_id"}),
    "a list of marks that is none": ({"text": "a", "source": IDS, "entities": {}}, {"entities"}),
    "a list": ([], {"A message"}),
    "nothing at all": (None, {"A message"}),
}


@pytest.mark.parametrize("case", WRONG)
def test_an_invalid_field_is_named(case: str) -> None:
    sent, places = WRONG[case]

    assert refused_fields(sent) == places


def nested(depth: int) -> Json:
    value: Json = "\0"
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize("depth", [900, 2_000, 100_000])
def test_metadata_that_is_nested_too_deeply_is_refused(depth: int) -> None:
    with pytest.raises(InvalidInput):
        form(metadata={"a": nested(depth)})


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 10**5000], ids=["nan", "infinity", "many digits"])
def test_metadata_without_a_json_form_is_refused(value: float) -> None:
    with pytest.raises(InvalidInput):
        form(metadata={"a": value})


def test_a_text_full_of_links_has_storable_metadata() -> None:
    urls = [f"https://a.example/{number}" for number in range(10_000)]

    metadata = form(" ".join(urls))["metadata"]

    assert metadata["urls"] == urls[: len(metadata["urls"])]
    assert len(metadata["urls"]) > 100
    assert len(compact(metadata)) < 16_384


def test_unknown_names_are_shown_as_far_as_possible() -> None:
    many: dict[str, Json] = {f"a{number:02}": 1 for number in range(50)}

    assert refused_fields({**many, "text": "a"}) == {f"a{number:02}" for number in range(10)}
    assert refused_fields({"text": "a", "\ud83d" + "b" * 9_999: 1}) == {"?" + "b" * 63}


RANGE = "must be a whole number from -9223372036854775808 to 9223372036854775807"


@pytest.mark.parametrize(
    ("sent", "found"),
    [
        (2**63, "9223372036854775808"),
        (-(2**63) - 1, "-9223372036854775809"),
        ("9223372036854775808", "'9223372036854775808'"),
        ("9" * 5000, f"'{'9' * 32}…'"),
        (10**100, "a number of 333 bits"),
        (-(10**5000), "a number of 16610 bits"),
        (5.0, "5.0"),
        (True, "true"),
        ("seven", "'seven'"),
        ([5], "a list"),
        ({}, "an object"),
    ],
    ids=lambda value: str(value)[:20] if not isinstance(value, int) or value.bit_length() < 100 else "huge",
)
def test_an_invalid_id_is_refused_with_the_range_and_the_value(sent: Any, found: str) -> None:
    for name in ("chat_id", "message_id"):
        with pytest.raises(InvalidInput) as refusal:
            form(source={**IDS, name: sent})

        assert refusal.value.fields == ((f"source.{name}", f"{RANGE}, got {found}"),)
    # A link is known by its address, and its ids are stored beside it: they must be ids all the same.
    with pytest.raises(InvalidInput, match="got "):
        form("https://a.example/", {"chat_id": sent})


def test_the_smallest_and_the_largest_id_are_valid() -> None:
    for edge in (-(2**63), 2**63 - 1):
        assert keys(form(source={"chat_id": edge, "message_id": str(edge)}))[1] == f"tg:{edge}:{edge}"


def test_the_source_may_name_its_system() -> None:
    assert form(source={**IDS, "system": " Telegram "}) == form()
