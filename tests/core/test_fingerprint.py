"""Equal calls have one fingerprint, different calls do not."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import hashlib

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceward.core.fingerprint import fingerprint
from onceward.errors import InvalidKey


@dataclasses.dataclass(frozen=True)
class Order:
    number: int
    lines: tuple[str, ...] = ()


class Basket(pydantic.BaseModel):
    number: int


def test_a_fingerprint_is_the_sha256_of_the_canonical_form() -> None:
    expected = hashlib.sha256(b'{"amount":10,"to":"x"}').hexdigest()

    assert fingerprint({"to": "x", "amount": 10}) == expected


# Any two of these differ.
DIFFERENT: list[object] = [
    None,
    False,
    True,
    0,
    1,
    2,
    1.5,
    "",
    "1",
    "None",
    b"1",
    bytearray(b"1"),
    decimal.Decimal(1),
    decimal.Decimal("1.0"),
    2**53,
    2**53 + 1,
    10**5000,
    10**5000 + 1,
    float("inf"),
    "\ud83d\ude00",
    "\U0001f600",
    [],
    (),
    set(),
    frozenset(),
    {},
    [1],
    (1,),
    {1},
    {"1": 1},
    {1: 1},
    {"$": "decimal", "v": "1"},
    [[1], 2],
    [1, [2]],
    Order(1),
    Order(1, ("a",)),
    Basket(number=1),
    {"number": 1},
    datetime.date(2024, 1, 1),
    datetime.datetime(2024, 1, 1),  # noqa: DTZ001  # without a zone on purpose
    datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC),
    "2024-01-01",
]


def test_different_values_have_different_fingerprints() -> None:
    prints = [fingerprint(value) for value in DIFFERENT]

    assert len(set(prints)) == len(prints)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ({1: "a", 2: "b"}, {2: "b", 1: "a"}),
        ({"$": 1, "a": 2}, {"a": 2, "$": 1}),
        ({(1, 2): {"x": 1, "y": 2}, None: 0}, {None: 0, (1, 2): {"y": 2, "x": 1}}),
        (Order(1, ("a",)), Order(1, ("a",))),
        (1, 1.0),
        (0, -0.0),
        ({1, 2, 3}, {3, 2, 1}),
    ],
)
def test_equal_values_have_one_fingerprint(one: object, other: object) -> None:
    assert fingerprint(one) == fingerprint(other)


def test_the_setting_for_decimal_digits_does_not_change_a_fingerprint() -> None:
    """Processes may differ in `sys.set_int_max_str_digits`. The fingerprint of a large integer must not."""
    assert fingerprint(10**700) == fingerprint(int(hex(10**700), 16))
    assert fingerprint(2**60) == hashlib.sha256(b'{"$":"int","v":"0x1000000000000000"}').hexdigest()


@pytest.mark.parametrize("value", [lambda: None, object(), Order, [object()], {"a": {object()}}, {"a": open}])
def test_arguments_without_a_canonical_form_are_refused_with_a_way_out(value: object) -> None:
    with pytest.raises(InvalidKey, match="ignore="):
        fingerprint(value)


@given(
    st.lists(st.tuples(st.integers() | st.text(max_size=3) | st.none(), st.integers()), unique_by=lambda pair: pair[0])
)
def test_the_order_in_which_a_dict_was_filled_does_not_matter(pairs: list[tuple[object, int]]) -> None:
    assert fingerprint(dict(pairs)) == fingerprint(dict(reversed(pairs)))


simple = st.integers() | st.text(max_size=3) | st.booleans() | st.none()


@given(st.lists(simple, max_size=4), st.lists(simple, max_size=4))
def test_two_lists_share_a_fingerprint_only_if_they_are_equal(one: list[object], other: list[object]) -> None:
    same = [(type(item), item) for item in one] == [(type(item), item) for item in other]

    assert (fingerprint(one) == fingerprint(other)) == same
