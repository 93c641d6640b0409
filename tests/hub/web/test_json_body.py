"""Strict JSON: the refusals and their messages, and that everything else parses as usual."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceward.errors import InvalidInput
from onceward.hub.web.json_body import NESTING_MAX, parse


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"", "empty"),
        (b" \n", "empty"),
        (b'{"a":1,"a":1}', 'the key "a" twice'),
        (b'[{"b":{"a":1,"x":0,"\\u0061":2}}]', 'the key "a" twice'),
        (b"[NaN]", "NaN"),
        (b"[Infinity]", "Infinity"),
        (b"-Infinity", "-Infinity"),
        (b"[1e400]", "too large"),
        (b"-1E+999", "too large"),
        (b"9" * 400 + b".5", "too large"),
        (b"[" + b"7" * 4301 + b"]", "4300 digits"),
        (b"-" + b"7" * 4301, "4300 digits"),
        (b'"\\ud800"', "surrogate"),
        (b'{"\\uDFFF":1}', "surrogate"),
        (b'["\\ude00\\ud83d"]', "surrogate"),
        (b'{"a":"x\\u0000y"}', "NUL"),
        (b'{"\\u0000":1}', "NUL"),
        (b'"\x00"', "not valid JSON"),
        (b'"\xff"', "not valid UTF-8"),
        (b'"\xed\xa0\x80"', "not valid UTF-8"),
        (b'"\xc0\x80"', "not valid UTF-8"),
        ('{"a":1}'.encode("utf-16"), "not valid UTF-8"),
        ("{}".encode("utf-16-be"), "not valid JSON"),
        (b"\xef\xbb\xbf{}", "byte order mark"),
        (b"[" * 65 + b"]" * 65, "64 levels"),
        (b'{"a":' * 65 + b"1" + b"}" * 65, "64 levels"),
        (b'[{"a":' * 33 + b"1" + b"}]" * 33, "64 levels"),
        (b"[" * 200_000 + b"]" * 200_000, "64 levels"),
        (b"[" * 200_000, "64 levels"),
        (b"{} {}", "Extra data, at line 1 column 4"),
        (b"{'a':1}", "not valid JSON"),
        (b"[1,]", "not valid JSON"),
        (b'{"a":1', "not valid JSON"),
        (b"nul", "not valid JSON"),
        (b"+1", "not valid JSON"),
        (b"01", "not valid JSON"),
        (b'"\n"', "not valid JSON"),
        (b"\x0b1", "not valid JSON"),
    ],
    ids=str,
)
def test_ambiguous_json_is_refused_with_its_reason(data: bytes, sentence: str) -> None:
    with pytest.raises(InvalidInput, match=sentence):
        parse(data)


@pytest.mark.parametrize(
    "data",
    [
        b"[" * 64 + b"]" * 64,
        b'{"a":' * 64 + b"1" + b"}" * 64,
        b"[" + b",".join([b"[]"] * 500) + b"]",
        b'["' + b"[{" * 500 + b'"]',
        b'["\\"' + b"[" * 500 + b'\\\\",[]]',
        b'{"a":"\\\\u0000","b":"\\\\ud800"}',
        b'"\\ud83d\\ude00"',
        b"[" + b"7" * 4300 + b"]",
        b"-" + b"7" * 4300,
        b"1e308",
        b"1e-400",
        b'" e400 ' + b"1" * 400 + b'"',
        b"0." + b"1" * 400,
        b'\t\r\n {"a" : [true,false,null,-0.0]} ',
        b"null",
        '"\u00e9\U0001f600\ufeff"'.encode(),
    ],
    ids=lambda data: str(data[:24]),
)
def test_all_other_json_is_parsed_as_by_the_standard_library(data: bytes) -> None:
    assert parse(data) == json.loads(data)


def test_one_duplicate_among_a_hundred_thousand_keys_is_found_quickly() -> None:
    """A search that compares each key with all others would take minutes."""
    keys = [f'"{number}":0' for number in range(100_000)]

    with pytest.raises(InvalidInput, match='the key "99999" twice'):
        parse(("{" + ",".join([*keys, keys[-1]]) + "}").encode())


def test_a_long_key_is_not_repeated_in_full() -> None:
    with pytest.raises(InvalidInput) as caught:
        parse(b'{"%s":1,"%s":2}' % (b"k" * 5000, b"k" * 5000))

    assert len(str(caught.value)) < 200


# A slow reference: the same rules, one after the other, on a tree that keeps pairs as pairs.


class Pairs(list[tuple[str, Any]]):
    """An object as its text has it, with all its pairs."""


def reference(data: bytes) -> Any:
    """Return the value, or ValueError."""
    text = data.decode("utf-8")
    tree = json.loads(text, object_pairs_hook=Pairs, parse_constant=_refuse)
    return _built(tree, 0)


def _refuse(name: str) -> None:
    raise ValueError(name)


def _built(node: Any, depth: int) -> Any:
    if isinstance(node, str):
        node.encode("utf-8")
        if "\x00" in node:
            raise ValueError("NUL")
        return node
    if isinstance(node, float):
        if not math.isfinite(node):
            raise ValueError("too large")
        return node
    if isinstance(node, list) and depth == NESTING_MAX:
        raise ValueError("deep")
    if isinstance(node, Pairs):
        built = [(_built(name, depth + 1), _built(value, depth + 1)) for name, value in node]
        if len({name for name, _ in built}) != len(built):
            raise ValueError("twice")
        return dict(built)
    if isinstance(node, list):
        return [_built(item, depth + 1) for item in node]
    return node


def outcome(read: Any, data: bytes) -> tuple[str, str]:
    try:
        return "value", repr(read(data))
    except (ValueError, InvalidInput, RecursionError):
        return "refused", ""


# Also lone surrogates and NUL, which an encoder writes as escapes.
texts = st.text(st.characters(codec=None), max_size=6) | st.sampled_from(["\x00", "\ud800", "a", "[", '"', "\\u0000"])
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts | st.sampled_from([1e400, 10**310]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)


@given(values, st.integers(0, 66), st.booleans())
def test_values_are_accepted_or_refused_as_by_the_reference_parser(value: Any, levels: int, ensure_ascii: bool) -> None:
    text = json.dumps(value, ensure_ascii=ensure_ascii)
    data = ("[" * levels + text + "]" * levels).encode("utf-8", "surrogatepass")

    assert outcome(parse, data) == outcome(reference, data)


pieces = st.sampled_from(
    [
        "{",
        "}",
        "[",
        "]",
        ",",
        ":",
        '"a"',
        '"b"',
        '"',
        "\\",
        "\\u0000",
        "\\ud800",
        "1e400",
        "-1",
        "NaN",
        "null",
        " ",
        "\x00",
    ]
)


@given(st.lists(pieces, max_size=24).map("".join))
def test_broken_texts_are_refused_as_by_the_reference_parser(text: str) -> None:
    data = text.encode()

    assert outcome(parse, data) == outcome(reference, data)
