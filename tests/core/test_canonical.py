"""Canonical JSON against the published vectors of RFC 8785, and our fast path against the package that follows it."""

from __future__ import annotations

import json
import math
import random
import struct

import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from onceward.core.canonical import INTEGER_MAX, Json, canonical
from onceward.errors import InvalidKey

# RFC 8785, appendix B: the bits of a double and its one text.
NUMBERS = {
    "0000000000000000": "0",
    "8000000000000000": "0",
    "0000000000000001": "5e-324",
    "8000000000000001": "-5e-324",
    "7fefffffffffffff": "1.7976931348623157e+308",
    "ffefffffffffffff": "-1.7976931348623157e+308",
    "4340000000000000": "9007199254740992",
    "c340000000000000": "-9007199254740992",
    "4430000000000000": "295147905179352830000",
    "44b52d02c7e14af5": "9.999999999999997e+22",
    "44b52d02c7e14af6": "1e+23",
    "44b52d02c7e14af7": "1.0000000000000001e+23",
    "444b1ae4d6e2ef4e": "999999999999999700000",
    "444b1ae4d6e2ef4f": "999999999999999900000",
    "444b1ae4d6e2ef50": "1e+21",
    "3eb0c6f7a0b5ed8c": "9.999999999999997e-7",
    "3eb0c6f7a0b5ed8d": "0.000001",
    "41b3de4355555553": "333333333.3333332",
    "41b3de4355555554": "333333333.33333325",
    "41b3de4355555555": "333333333.3333333",
    "41b3de4355555556": "333333333.3333334",
    "41b3de4355555557": "333333333.33333343",
    "becbf647612f3696": "-0.0000033333333333333333",
    "43143ff3c1cb0959": "1424953923781206.2",
}


@pytest.mark.parametrize(("bits", "text"), NUMBERS.items())
def test_a_number_is_written_as_in_appendix_b(bits: str, text: str) -> None:
    (number,) = struct.unpack(">d", bytes.fromhex(bits))

    assert canonical(number) == text.encode()
    assert canonical({"n": [number]}) == b'{"n":[' + text.encode() + b"]}"


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, 2**53, -(2**53), pytest.param(10**5000, id="huge")])
def test_a_number_without_a_canonical_form_is_refused(number: float) -> None:
    values: list[Json] = [number, [number], {"a": number}]
    for value in values:
        with pytest.raises(InvalidKey):
            canonical(value)


def test_the_largest_exact_integers_have_a_form() -> None:
    assert canonical([INTEGER_MAX, -INTEGER_MAX]) == b"[9007199254740991,-9007199254740991]"


def test_keys_are_sorted_by_utf_16_code_units() -> None:
    """The sorting example of RFC 8785, section 3.2.3: the emoji comes before U+FB33, which a sort by code points would not do."""
    value: Json = {
        "\u20ac": "Euro Sign",
        "\r": "Carriage Return",
        "\ufb33": "Hebrew Letter Dalet With Dagesh",
        "1": "One",
        "\U0001f600": "Emoji: Grinning Face",
        "\u0080": "Control",
        "\u00f6": "Latin Small Letter O With Diaeresis",
    }

    names = list(json.loads(canonical(value)).values())

    assert names == [
        "Carriage Return",
        "One",
        "Control",
        "Latin Small Letter O With Diaeresis",
        "Euro Sign",
        "Emoji: Grinning Face",
        "Hebrew Letter Dalet With Dagesh",
    ]


def test_the_example_of_the_rfc_has_its_published_bytes() -> None:
    """RFC 8785, section 3.2.2 and its result in 3.2.4."""
    value: Json = {
        "numbers": [333333333.33333329, 1e30, 4.50, 2e-3, 0.000000000000000000000000001],
        "string": "\u20ac$\u000f\u000aA'\u0042\u0022\u005c\\\"/",
        "literals": [None, True, False],
    }

    assert (
        canonical(value)
        == (
            '{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],'
            '"string":"\u20ac$\\u000f\\nA\'B\\"\\\\\\\\\\"/"}'
        ).encode()
    )


def test_every_ascii_character_is_written_as_the_rfc_writes_it() -> None:
    text = "".join(map(chr, range(128)))

    assert canonical(text) == rfc8785.dumps(text)
    assert canonical({text: text}) == rfc8785.dumps({text: text})


@pytest.mark.parametrize("value", ["\ud800", ["\udfff"], {"\ud83d": 1}, {"a": {"b": "x\ude00"}}])
def test_a_lone_surrogate_is_refused(value: Json) -> None:
    with pytest.raises(InvalidKey):
        canonical(value)


def test_endless_nesting_is_refused_without_a_crash() -> None:
    ring: list[Json] = []
    ring.append(ring)

    with pytest.raises(InvalidKey):
        canonical(ring)


def test_a_name_that_is_not_text_is_refused() -> None:
    with pytest.raises(InvalidKey):
        canonical({1: 2})  # type: ignore[dict-item]  # from untyped callers


json_values: st.SearchStrategy[Json] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-INTEGER_MAX, INTEGER_MAX)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
    | st.text(st.characters(max_codepoint=127), max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=20,
)


@given(json_values)
def test_the_fast_path_writes_the_same_bytes_as_the_package(value: Json) -> None:
    assert canonical(value) == rfc8785.dumps(value)


@given(json_values)
def test_parsing_canonical_json_and_writing_it_again_changes_nothing(value: Json) -> None:
    once = canonical(value)

    # Through floats, because a whole number over 2^53 is read back as an integer, which has no form.
    assert canonical(json.loads(once, parse_int=float)) == once


@given(st.dictionaries(st.text(max_size=4), st.integers(-100, 100), max_size=6), st.randoms())
def test_the_order_of_names_does_not_matter(value: dict[str, int], shuffle: random.Random) -> None:
    names = shuffle.sample(list(value), len(value))

    assert canonical({name: value[name] for name in names}) == canonical(dict(value))
