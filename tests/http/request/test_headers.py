"""Headers of a keyed request: its key, its wait, and its fingerprint."""

from __future__ import annotations

import json
import string

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from onceward.core.canonical import Json, canonical
from onceward.core.fingerprint import Digest, fingerprint
from onceward.core.key import check_key
from onceward.errors import InvalidKey
from onceward.http.request.headers import (
    KEY_CHARACTERS_MAX,
    PREFER_WAIT_SECONDS_MAX,
    digest_of,
    fields_of,
    fingerprint_of,
    key_of,
    length_of,
    media_type_of,
    wait_seconds_of,
)

VISIBLE = "".join(chr(code) for code in range(0x21, 0x7F))

keys = st.text(VISIBLE, min_size=1, max_size=KEY_CHARACTERS_MAX)
header_values = st.text(st.characters(max_codepoint=0xFF), max_size=60)
json_values: st.SearchStrategy[Json] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


def quoted(key: str) -> str:
    escaped = key.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


# The key.


@given(keys)
@example('"')
@example("\\")
@example('a"b')
@example('\\"')
def test_a_quoted_key_equals_the_bare_key(key: str) -> None:
    assert key_of([quoted(key)], []) == key
    if not key.startswith('"'):
        assert key_of([key], []) == key


@given(keys)
def test_both_headers_with_the_same_key_are_one_key(key: str) -> None:
    assert key_of([quoted(key)], [quoted(key)]) == key_of([], [quoted(key)]) == key


def test_both_headers_may_spell_the_key_differently() -> None:
    assert key_of(['"order-1"'], ["order-1"]) == "order-1"


def test_two_headers_that_differ_are_refused() -> None:
    with pytest.raises(InvalidKey, match="Idempotency-Key and X-Idempotency-Key differ"):
        key_of(["a"], ["b"])


@pytest.mark.parametrize("lines", [["a", "a"], ["a", "b"], ["a", ""], ["a", "b", "c"]])
def test_a_header_sent_more_than_once_is_refused_even_with_the_same_key(lines: list[str]) -> None:
    with pytest.raises(InvalidKey, match=f"the header Idempotency-Key was sent {len(lines)} times"):
        key_of(lines, [])
    with pytest.raises(InvalidKey, match=f"the header X-Idempotency-Key was sent {len(lines)} times"):
        key_of([], lines)


@pytest.mark.parametrize("line", [" order-1", "order-1\t", " \t order-1 \t", ' "order-1" '])
def test_whitespace_around_a_key_is_ignored(line: str) -> None:
    assert key_of([line], []) == "order-1"


def test_a_key_has_at_most_255_characters_without_its_quotes() -> None:
    longest = '"' * KEY_CHARACTERS_MAX

    assert key_of([quoted(longest)], []) == longest
    for line in ("k" * 256, quoted("k" * 256)):
        with pytest.raises(InvalidKey, match="1 to 255 visible ASCII characters"):
            key_of([line], [])


@pytest.mark.parametrize(
    "line", ["", " ", "\t", '""', "a b", '"a b"', "a\x00", "a\x7f", "é", '"é"', "a\n", "a\r\nb", "\xa0"]
)
def test_a_key_is_visible_ascii(line: str) -> None:
    with pytest.raises(InvalidKey, match="visible ASCII"):
        key_of([line], [])


@pytest.mark.parametrize("line", ['"', '"a', '"a"b', '"a" "b"', '"a";p=1', '"a\\', '"a\\"', '"a\\n"', '""a"'])
def test_a_malformed_quoted_key_is_refused(line: str) -> None:
    with pytest.raises(InvalidKey, match="not a valid quoted string"):
        key_of([line], [])


@given(header_values)
def test_every_header_value_is_refused_or_a_key_that_the_ledger_accepts(line: str) -> None:
    try:
        key = key_of([line], [])
    except InvalidKey:
        return

    assert check_key(key) == key
    assert key_of([quoted(key)], []) == key


# How long it would wait.


@pytest.mark.parametrize(
    ("lines", "seconds"),
    [
        ([], None),
        (["respond-async"], None),
        (["wait=10"], 10),
        (["respond-async, wait=10"], 10),
        (["wait=10, respond-async"], 10),
        (["respond-async", "wait=7"], 7),
        (["WAIT = 3"], 3),
        (['wait="4"'], 4),
        (["wait=5;foo=bar"], 5),
        (["wait=0"], 0),
        (["wait=5, wait=9"], 5),
        (["wait=3600"], PREFER_WAIT_SECONDS_MAX),
        (["wait=99999999999999999999"], PREFER_WAIT_SECONDS_MAX),
        ([f"wait={'1' * 5000}"], PREFER_WAIT_SECONDS_MAX),
        ([f"wait={'0' * 5000}7"], 7),
        (["wait=00"], 0),
        (["wait=-1"], None),
        (["wait=1.5"], None),
        (["wait"], None),
        (["wait="], None),
        (["await=5"], None),
        (["waiting=5"], None),
        (["wait=5 minutes"], None),
    ],
)
def test_prefer_says_how_long_to_wait(lines: list[str], seconds: int | None) -> None:
    assert wait_seconds_of(lines) == seconds


@given(st.lists(header_values, max_size=3))
def test_prefer_never_waits_for_more_than_a_minute(lines: list[str]) -> None:
    seconds = wait_seconds_of(lines)

    assert seconds is None or 0 <= seconds <= PREFER_WAIT_SECONDS_MAX


# The declared length.


@pytest.mark.parametrize(
    ("text", "length"),
    [
        ("", None), ("0", 0), ("12", 12), ("012", 12), ("-1", None), ("+1", None), ("1.0", None), (" 1", None),
        ("1_0", None), ("\u00b2", None), ("\u0663", None), ("9" * 18, 10**18 - 1), ("9" * 5000, 10**18),
    ],
)  # fmt: skip
def test_a_content_length_is_a_number_in_plain_digits(text: str, length: int | None) -> None:
    assert length_of(text) == length


# Fingerprints.


@pytest.mark.parametrize(
    ("content_type", "media_type"),
    [
        ("", ""),
        ("application/json", "application/json"),
        ("Application/JSON; charset=utf-8", "application/json"),
        ("multipart/form-data; boundary=x", "multipart/form-data"),
        (" text/plain ;", "text/plain"),
        (";", ""),
    ],
)
def test_media_types_are_compared_without_parameters_and_case(content_type: str, media_type: str) -> None:
    assert media_type_of(content_type) == media_type


@given(header_values)
def test_every_content_type_has_a_place_in_the_fingerprint(content_type: str) -> None:
    assert fingerprint_of("POST", b"/", b"", media_type_of(content_type), b"")


@given(st.lists(st.binary(max_size=5), max_size=4), st.lists(st.binary(max_size=5), max_size=4))
@example([b"ab"], [b"a", b"b"])
@example([b"a:b"], [b"a", b"b"])
@example([b"a1:b"], [b"a", b"b"])
@example([b""], [])
@example([b"1:a"], [b"a"])
@example([b"a", b""], [b"", b"a"])
def test_different_parts_have_different_digests(one: list[bytes], other: list[bytes]) -> None:
    assert (digest_of(*one) == digest_of(*other)) == (one == other)


def test_one_part_cannot_imitate_several_parts() -> None:
    inside = b"".join(b"%d:%b" % (len(part), part) for part in (b"POST", b"/pay"))

    assert digest_of(inside) != digest_of(b"POST", b"/pay")
    assert digest_of(inside[2:], b"x") != digest_of(b"POST", b"/pay", b"x")


request_parts = st.tuples(
    st.sampled_from(["POST", "PUT", "PATCH"]),
    st.binary(max_size=6),
    st.binary(max_size=6),
    st.text(string.ascii_lowercase + "/", max_size=6),
    st.binary(max_size=6),
)


@given(request_parts, request_parts)
@example(("POST", b"/a", b"b", "", b""), ("POST", b"/", b"ab", "", b""))
def test_two_requests_are_the_same_only_if_all_parts_are(
    one: tuple[str, bytes, bytes, str, bytes], other: tuple[str, bytes, bytes, str, bytes]
) -> None:
    assert (fingerprint_of(*one) == fingerprint_of(*other)) == (one == other)


def test_the_ledger_accepts_the_fingerprint() -> None:
    taken = fingerprint_of("POST", b"/pay/%ff", b"a=1", "application/json", b"body")

    assert type(taken) is Digest
    assert fingerprint(taken) == taken
    assert len(taken) == 64


# Chosen fields.


def test_only_the_chosen_fields_count() -> None:
    first = fields_of(b'{"order": 1, "amount": 5, "sent_at": "now"}', ("order", "amount"))
    retry = fields_of(b'{"amount":5.0,"sent_at":"later","order":1}', ("order", "amount"))

    assert first == retry == b'{"amount":5,"order":1}'


def test_a_nested_field_has_a_dotted_name() -> None:
    assert fields_of(b'{"buyer": {"name": "ann", "mood": "good"}}', ("buyer.name",)) == b'{"buyer.name":"ann"}'
    assert fields_of(b'{"buyer": "ann"}', ("buyer.name",)) == b"{}"
    assert fields_of(b'{"buyer.name": "ann"}', ("buyer.name",)) == b"{}"


def test_a_missing_field_differs_from_a_null_field() -> None:
    assert fields_of(b"{}", ("a",)) != fields_of(b'{"a": null}', ("a",))


@pytest.mark.parametrize(
    "body",
    [
        b"", b"[1]", b"1", b'"a"', b"null", b"{", b'{"a":1}x', b"\xff", b'{"a":' + b"9" * 5000 + b"}",
        b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
    ids=lambda body: repr(body[:12]),
)  # fmt: skip
def test_a_body_that_is_not_a_json_object_has_no_fields(body: bytes) -> None:
    assert fields_of(body, ("a",)) is None


@pytest.mark.parametrize("value", [b"NaN", b"Infinity", b"1e999", b"9007199254740993", b'"\\ud800"', b'{"\\udc00": 1}'])
def test_with_a_chosen_field_without_a_canonical_form_the_whole_body_counts(value: bytes) -> None:
    assert fields_of(b'{"a": %b}' % value, ("a",)) is None
    assert fields_of(b'{"b": %b, "a": 1}' % value, ("a",)) == b'{"a":1}'


@given(st.dictionaries(st.sampled_from("abc"), json_values), st.sets(st.sampled_from("abc")))
def test_chosen_fields_are_those_of_the_object_in_canonical_form(body: dict[str, Json], names: set[str]) -> None:
    chosen = {name: value for name, value in body.items() if name in names}
    try:
        expected = canonical(chosen)
    except InvalidKey:
        assume(False)

    assert fields_of(json.dumps(body).encode(), tuple(names)) == expected


@given(st.binary(max_size=40) | st.text(max_size=40).map(str.encode))
def test_no_body_makes_the_selection_of_fields_fail(body: bytes) -> None:
    assert fields_of(body, ("a", "a.b")) is None or isinstance(json.loads(body), dict)
