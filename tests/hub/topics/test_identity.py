"""Valid attachments, and the identity of two attachments: pure, without a database."""

from __future__ import annotations

from typing import Any

import pytest

from onceward.core.canonical import same_value
from onceward.errors import InvalidInput, OncewardError, TooLarge
from onceward.hub.topics import NewAttachment
from onceward.hub.topics.identity import Identity

GOOD: dict[str, Any] = {"kind": "citation", "value_json": {"a": 1}}
LINK: dict[str, Any] = {"kind": "url", "value_json": {"url": "https://example.com/"}}


def link(**value: object) -> dict[str, Any]:
    return {"kind": "url", "value_json": {"url": "https://example.com/", **value}}


REFUSED: dict[str, tuple[dict[str, Any], type[OncewardError]]] = {
    "blank kind": ({"kind": ""}, InvalidInput),
    "kind of blanks": ({"kind": " \t"}, InvalidInput),
    "long kind": ({"kind": "k" * 65}, InvalidInput),
    "kind long in bytes": ({"kind": "ä" * 33}, InvalidInput),
    "NUL in the kind": ({"kind": "a\0b"}, InvalidInput),
    "half a character": ({"kind": "a\ud800"}, InvalidInput),
    "key of blanks": ({"key": " "}, InvalidInput),
    "long key": ({"key": "k" * 513}, InvalidInput),
    "empty dedupe_key": ({"dedupe_key": ""}, InvalidInput),
    "blank dedupe_key": ({"dedupe_key": "  "}, InvalidInput),
    "long dedupe_key": ({"dedupe_key": "k" * 513}, InvalidInput),
    "value is a list": ({"value_json": [1]}, InvalidInput),
    "value is a text": ({"value_json": "x"}, InvalidInput),
    "value is nothing": ({"value_json": None}, InvalidInput),
    "large value": ({"value_json": {"a": "x" * 16_384}}, TooLarge),
    "value large in bytes": ({"value_json": {"a": "ä" * 8_190}}, TooLarge),
    "NaN": ({"value_json": {"a": float("nan")}}, InvalidInput),
    "NUL deep in the value": ({"value_json": {"a": [{"b": "\0"}]}}, InvalidInput),
    "NUL in a name": ({"value_json": {"\0": 1}}, InvalidInput),
    "half a character in the value": ({"value_json": {"a": "\udfff"}}, InvalidInput),
    "integer without a canonical form": ({"value_json": {"a": 2**53}}, InvalidInput),
    "negative integer without a canonical form": ({"value_json": {"a": -(2**53)}}, InvalidInput),
    "link without url": ({"kind": "url", "value_json": {}}, InvalidInput),
    "link in capitals": ({"kind": "LINK", "value_json": {"url": "javascript:alert(1)"}}, InvalidInput),
    "url is a number": ({"kind": "link", "value_json": {"url": 5}}, InvalidInput),
    "ftp": (link(url="ftp://example.com/"), InvalidInput),
    "no host": (link(url="https:///x"), InvalidInput),
    "blank in the url": (link(url="https://example.com/a b"), InvalidInput),
    "line break in the url": (link(url="https://example.com/\nx"), InvalidInput),
    "wrong port": (link(url="https://example.com:99999/"), InvalidInput),
    "broken address": (link(url="https://[::1/"), InvalidInput),
    "long url": (link(url="https://example.com/" + "x" * 2029), InvalidInput),
    "control character in the title": (link(title="a\x1bb"), InvalidInput),
    "control character in the description": (link(description="a\x85b"), InvalidInput),
    "title is a list": (link(title=[]), InvalidInput),
}

ACCEPTED: dict[str, dict[str, Any]] = {
    "kind at its limit": {"kind": "k" * 64},
    "key at its limit": {"key": "k" * 512},
    "dedupe_key at its limit": {"dedupe_key": "k" * 512},
    "value at its limit": {"value_json": {"a": "x" * (16_384 - 8)}},
    "largest integer": {"value_json": {"a": 2**53 - 1}},
    "large integer with a dedupe_key": {"value_json": {"a": 2**64}, "dedupe_key": "k"},
    "empty value": {"value_json": {}},
    "link": link(title="A title", description="Said “so”", other="\t"),
    "link in capitals": {"kind": "Link", "value_json": {"url": "http://example.com:8080/a?b=c#d"}},
    "url at its limit": link(url="https://example.com/" + "x" * 2028),
    "no title": link(title=None),
    "url of another kind": {"kind": "citation", "value_json": {"url": "not a url"}},
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_invalid_attachment_is_refused_with_its_reason(name: str) -> None:
    fields, error = REFUSED[name]

    with pytest.raises(error) as refusal:
        Identity.of("top_1", NewAttachment(**{**GOOD, **fields}))

    assert str(refusal.value)


@pytest.mark.parametrize("name", ACCEPTED)
def test_an_attachment_within_the_limits_is_accepted(name: str) -> None:
    identity = Identity.of("top_1", NewAttachment(**{**GOOD, **ACCEPTED[name]}))

    assert identity.topic_id == "top_1"
    assert len(identity.dedupe_key.encode()) <= 512


def test_a_refusal_names_its_field() -> None:
    with pytest.raises(InvalidInput) as refusal:
        Identity.of("top_1", NewAttachment("k" * 65, {}))

    assert [name for name, _ in refusal.value.fields] == ["kind"]


def test_values_are_compared_as_json() -> None:
    huge = 2**60

    assert same_value({"a": [1, {"b": 2.0}]}, {"a": [1.0, {"b": 2}]})
    assert not same_value({"a": 1}, {"a": True})
    assert same_value({"a": [huge, {"b": 1.0}]}, {"a": [huge, {"b": 1}]})
    assert not same_value({"a": [huge, 1]}, {"a": [huge, True]})
    assert not same_value({"a": huge}, {"a": huge + 1})
    assert not same_value({"a": [huge]}, {"a": [huge, huge]})
    assert not same_value({"a": huge}, {"b": huge})
