"""Key sources: headers, query parameters, JSON fields, functions, and the first of several."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import pytest

from onceward.errors import InvalidKey, InvalidOption
from onceward.http import KeySource, RequestHead, first_of, header, json_field, query
from onceward.http.request.key_source import KEY_HEADERS_SOURCE, BodyNeeded, as_source, joined, key_text


def head(query_string: str = "", headers: Mapping[str, list[str]] | None = None) -> RequestHead:
    return RequestHead("POST", "/pay", query_string, lambda name: (headers or {}).get(name, []))


def test_a_header_is_found_in_any_case_quoted_or_bare() -> None:
    sent = head(headers={"webhook-id": ["msg_1"], "quoted": ['"ac"']})

    assert header("Webhook-Id").find(sent, None) == "msg_1"
    assert header("QUOTED").find(sent, None) == "ac"
    assert header("Other").find(sent, None) is None


@pytest.mark.parametrize("lines", [["a", "b"], ["a", "a"], [""], ["a b"], ['"a'], ["é"], ["x" * 256]])
def test_a_header_that_is_not_one_key_is_refused(lines: list[str]) -> None:
    with pytest.raises(InvalidKey):
        header("Webhook-Id").find(head(headers={"webhook-id": lines}), None)


def test_a_query_parameter_is_decoded() -> None:
    assert query("delivery").find(head("a=1&delivery=x%2Fy"), None) == "x/y"
    assert query("delivery").find(head("a=1"), None) is None


@pytest.mark.parametrize("text", ["delivery=a&delivery=a", "delivery=", "delivery=a%20b", "delivery=%C3%A9"])
def test_a_query_parameter_that_is_not_one_key_is_refused(text: str) -> None:
    with pytest.raises(InvalidKey):
        query("delivery").find(head(text), None)


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (b'{"event":{"id":"e1"}}', "e1"),
        (b'{"event":{"id":12345678901234567890}}', "12345678901234567890"),
        (b'{"event":{"id":null}}', None),
        (b'{"event":{}}', None),
        (b'{"event":["id"]}', None),
        (b"[]", None),
        (b"not json", None),
        (b"", None),
        (b"[" * 100_000, None),
    ],
)
def test_a_json_field_is_a_text_or_a_whole_number(body: bytes, found: str | None) -> None:
    assert json_field("event.id").find(head(), body) == found


@pytest.mark.parametrize("value", [b"1.5", b"true", b"{}", b"[]", b'""', b'"  "'])
def test_a_json_field_of_another_kind_is_refused(value: bytes) -> None:
    with pytest.raises(InvalidKey):
        json_field("id").find(head(), b'{"id":' + value + b"}")


@pytest.mark.parametrize("body", [b'{"id":"a","id":"b"}', b'{"event":{"id":"a"},"event":{"id":"b"}}'])
def test_a_json_field_that_is_sent_twice_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidKey, match="more than once"):
        json_field("id" if body.startswith(b'{"id') else "event.id").find(head(), body)


def test_a_text_that_no_header_could_carry_is_hashed_and_never_collides() -> None:
    keys = {key_text(text, "id") for text in ("é", "a b", "x" * 300, "sha256:ab", "plain")}

    assert len(keys) == 5
    assert "plain" in keys
    assert all(len(key) <= 255 and key.isascii() for key in keys)
    assert key_text(key_text("é", "id"), "id") != key_text("é", "id"), "a hash that a client sends is hashed again"


def test_joined_texts_keep_their_borders() -> None:
    assert len({joined("a|b", "c"), joined("a", "b|c"), joined("a%7Cb", "c"), joined("a", "b", "c")}) == 4


def test_a_function_gets_the_head_and_the_body() -> None:
    source = as_source(lambda request, body: f"{request.method}-{request.header('X-Id')}-{len(body)}")

    assert source.find(head(headers={"x-id": ["7"]}), b"abc") == "POST-7-3"
    assert as_source(lambda _head, _body: None).find(head(), b"") is None


def test_the_first_source_with_a_key_wins_and_the_body_is_read_only_if_needed() -> None:
    source = first_of(header("Idempotency-Key"), json_field("id"))

    assert source.find(head(headers={"idempotency-key": ["h"]}), None) == "h"
    with pytest.raises(BodyNeeded):
        source.find(head(), None)
    assert source.find(head(), b'{"id":"b"}') == "b"
    assert source.reads_body
    assert not first_of(header("A"), query("b")).reads_body


def test_the_default_source_reads_the_two_key_headers() -> None:
    assert KEY_HEADERS_SOURCE.find(head(headers={"x-idempotency-key": ["k"]}), None) == "k"
    assert KEY_HEADERS_SOURCE.find(head(), None) is None


@pytest.mark.parametrize(
    "make",
    [
        lambda: header(""),
        lambda: header("a b"),
        lambda: query(""),
        lambda: json_field("a..b"),
        lambda: json_field(""),
        first_of,
        lambda: as_source("Webhook-Id"),
        lambda: as_source(3),
    ],
)
def test_a_wrong_source_is_refused(make: Any) -> None:
    with pytest.raises(InvalidOption):
        make()


async def _async_key(_head: object, _body: object) -> str:
    return "k"


class _AsyncKey:
    async def __call__(self, _head: object, _body: object) -> str:
        return "k"


@pytest.mark.parametrize("function", [_async_key, _AsyncKey(), header, lambda: "k"])
def test_a_function_that_cannot_be_called_for_a_key_is_refused_at_once(function: Any) -> None:
    with pytest.raises(InvalidOption, match="must be a plain function of the head and the body"):
        as_source(function)


@pytest.mark.parametrize("function", [lambda *_found: "k", functools.partial(max, "k"), max])
def test_any_plain_function_of_the_head_and_the_body_is_accepted(function: Any) -> None:
    assert as_source(function).reads_body


def test_a_function_that_returns_no_text_is_refused() -> None:
    source: KeySource = as_source(lambda _head, _body: 7)

    with pytest.raises(InvalidOption, match="must return the key"):
        source.find(head(), b"")
