"""JSON bodies are compared by their value, and byte by byte where the value is not certain."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceward.http.request.json_digest import DEPTH_MAX, json_digest

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
NUMBERS = st.integers() | st.decimals(allow_nan=False, allow_infinity=False, places=4)
SCALARS = st.none() | st.booleans() | NUMBERS | TEXTS
VALUES: st.SearchStrategy[Any] = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4), max_leaves=12
)


def written(value: Any, draw: st.DataObject) -> str:
    """Return one of the many spellings of a value: any order, any escapes, any form of a number, any white space."""
    space = draw.draw(st.sampled_from(["", " ", "\n\t"]))
    if isinstance(value, dict):
        names = draw.draw(st.permutations(list(value)))
        pairs = [f"{text(name, draw)}{space}:{written(value[name], draw)}" for name in names]
        return f"{{{space}{','.join(pairs)}}}"
    if isinstance(value, list):
        return f"[{space}{f'{space},'.join(written(item, draw) for item in value)}]"
    if isinstance(value, str):
        return text(value, draw)
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    return number(value, draw)


def text(value: str, draw: st.DataObject) -> str:
    if draw.draw(st.booleans()):
        return json.dumps(value, ensure_ascii=draw.draw(st.booleans()))
    units = value.encode("utf-16-be")
    return '"' + "".join(f"\\u{units[at]:02x}{units[at + 1]:02X}" for at in range(0, len(units), 2)) + '"'


def number(value: int | Decimal, draw: st.DataObject) -> str:
    plain = f"{value:f}" if isinstance(value, Decimal) else str(value)
    shift = draw.draw(st.integers(-3, 3))
    if shift == 0:
        return plain if "." in plain or draw.draw(st.booleans()) else f"{plain}.000"
    sign, digits, exponent = Decimal(plain).as_tuple()
    assert isinstance(exponent, int)
    mantissa = "".join(map(str, digits)) + "0" * abs(shift)
    return (
        f"{'-' if sign else ''}{mantissa.lstrip('0') or '0'}{draw.draw(st.sampled_from('eE'))}{exponent - abs(shift)}"
    )


@given(VALUES, st.data())
def test_every_spelling_of_a_value_has_the_same_digest(value: Any, draw: st.DataObject) -> None:
    first, second = written(value, draw), written(value, draw)

    digest = json_digest(first.encode())

    assert digest is not None
    assert digest == json_digest(second.encode()), (first, second)


def exact(value: Any) -> Any:
    """Return a value that is equal to another one exactly if both are the same JSON value."""
    if isinstance(value, dict):
        return "object", frozenset((name, exact(item)) for name, item in value.items())
    if isinstance(value, list):
        return "array", tuple(exact(item) for item in value)
    if isinstance(value, bool) or value is None:
        return "word", str(value)
    return ("text", value) if isinstance(value, str) else ("number", Decimal(value))


@given(VALUES, VALUES, st.data())
def test_two_values_have_the_same_digest_only_if_they_are_equal(one: Any, other: Any, draw: st.DataObject) -> None:
    same = json_digest(written(one, draw).encode()) == json_digest(written(other, draw).encode())

    assert same == (exact(one) == exact(other))


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (b'{"a":1,"b":2}', b'{"b":2,"a":1}', True),
        (b"[1,2]", b"[2,1]", False),
        (b"1", b"1.0", True),
        (b"1", b"100e-2", True),
        (b"0", b"-0.0", True),
        (b"0.1", b"0.1000000000000000055511151231257827", False),
        (b"9007199254740992", b"9007199254740993", False),
        (b"1e400", b"1e401", False),
        (b"10e399", b"1e400", True),
        (b"1", b'"1"', False),
        (b"1", b"true", False),
        (b'{"a":null}', b"{}", False),
        (b'"\\u00e9"', '"é"'.encode(), True),
        ('"é"'.encode(), b'"e\\u0301"', False),
        (b'"\\ud83d\\ude00"', '"😀"'.encode(), True),
        (b'"/"', b'"\\/"', True),
        (b'{"a":[]}', b'{"a":{}}', False),
        (b'["ab"]', b'["a","b"]', False),
    ],
)
def test_values_are_equal_as_json_defines_it(one: bytes, other: bytes, same: bool) -> None:
    assert json_digest(one) is not None
    assert json_digest(other) is not None

    assert (json_digest(one) == json_digest(other)) is same


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"x",
        b"{",
        b"NaN",
        b"[Infinity]",
        b"-Infinity",
        b'{"a":1,"a":2}',
        b'{"b":{"a":1,"\\u0061":1}}',
        b'"\\ud800"',
        b'{"\\udc00":1}',
        b'"\xff"',
        '{"a":1}'.encode("utf-16"),
        b'\xef\xbb\xbf{"a":1}',
        b"1e" + b"9" * 30,
        b"[" * (DEPTH_MAX + 2) + b"]" * (DEPTH_MAX + 2),
        b"[" * 100_000,
    ],
)
def test_a_body_without_a_certain_value_has_no_digest(body: bytes) -> None:
    assert json_digest(body) is None


def test_the_deepest_value_that_is_compared_as_json() -> None:
    body = b"[" * DEPTH_MAX + b"]" * DEPTH_MAX

    assert json_digest(body) == json_digest(body.replace(b"[", b"[ "))


def test_a_long_whole_number_is_compared_exactly() -> None:
    digits = b"1" * 10_000

    assert json_digest(digits) == json_digest(digits + b".0")
    assert json_digest(digits) != json_digest(digits[:-1] + b"2")
