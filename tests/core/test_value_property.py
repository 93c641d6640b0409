"""Every value of the supported types comes back equal, with the same types at every depth."""

from __future__ import annotations

import datetime
import enum
from dataclasses import dataclass
from decimal import Decimal
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from onceward.core.value import TAG, decode, encode


class Colour(enum.Enum):
    RED = "red"
    BLUE = ("b", 2)


class Right(enum.Flag):
    READ = 1
    WRITE = 2


class Word(enum.StrEnum):
    YES = "yes"


@dataclass(frozen=True, slots=True)
class Line:
    start: int
    marks: tuple[Decimal, ...]


class Pair(NamedTuple):
    left: object
    right: object


# Real zones have whole seconds; Python itself reads an offset under one second back as UTC.
offsets = st.integers(-86_399, 86_399).map(lambda seconds: datetime.timezone(datetime.timedelta(seconds=seconds)))
plain = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(st.characters(codec=None, exclude_categories=[]))
    | st.binary()
    | st.decimals(allow_nan=False)
    | st.uuids()
    | st.datetimes()
    | st.datetimes(timezones=offsets)
    | st.dates()
    | st.times()
    | st.timedeltas()
    | st.complex_numbers(allow_nan=False)
    | st.sampled_from([*Colour, *Word, *Right, Right.READ | Right.WRITE])
)
hashable = st.recursive(
    plain,
    lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3) | st.builds(Pair, inner, inner),
    max_leaves=4,
)
anything = st.recursive(
    plain,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=3) | st.just(TAG), inner, max_size=4)
        | st.dictionaries(hashable, inner, max_size=3)
        | st.sets(hashable, max_size=3)
        | st.builds(Pair, inner, inner)
        | st.builds(Line, st.integers(), st.tuples(st.decimals(allow_nan=False)))
    ),
    max_leaves=12,
)


def types_in(value: object) -> object:
    """The types of a value and its parts: `1 == True == 1.0` alone would not show a changed type."""
    if isinstance(value, dict):
        return [dict, [(types_in(name), types_in(item)) for name, item in value.items()]]
    if isinstance(value, tuple | list):
        return [type(value), [types_in(item) for item in value]]
    if isinstance(value, set | frozenset):
        return [type(value), sorted(str(types_in(item)) for item in value)]
    return type(value)


@given(anything)
def test_every_value_comes_back_equal_and_of_the_same_types(value: object) -> None:
    back = decode(encode(value))

    assert back == value
    assert types_in(back) == types_in(value)
