"""Results of effects come back equal and of the same type, or are refused when stored; they are never changed."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import io
import math
import sys
import uuid
import zoneinfo
from collections import namedtuple
from typing import Generic, NamedTuple, TypeVar

import pydantic
import pytest

from onceward.core.scalar import Unkeepable
from onceward.core.value import NESTING_MAX, TAG, decode, encode
from onceward.errors import OutcomeNotKept


class Colour(enum.Enum):
    RED = "red"
    BLUE = ("b", 2)


class Size(enum.IntEnum):
    SMALL = 1


class Word(enum.StrEnum):
    YES = "yes"


class Right(enum.Flag):
    READ = 1
    WRITE = 2


@dataclasses.dataclass
class Point:
    x: int
    y: int = 2


@dataclasses.dataclass(frozen=True, slots=True)
class Line:
    start: Point
    end: Point | None
    marks: tuple[decimal.Decimal, ...] = ()


@dataclasses.dataclass
class Total:
    """A class whose fields differ from its arguments: one is derived, and one is changed by the constructor."""

    cents: int
    doubled: int = dataclasses.field(init=False, default=0)

    def __post_init__(self) -> None:
        self.cents *= 100
        self.doubled = self.cents * 2


class Pair(NamedTuple):
    left: object
    right: object


Old = namedtuple("Old", "one two")  # noqa: PYI024  # the untyped form is a result like any other


class Model(pydantic.BaseModel):
    amount: decimal.Decimal
    when: datetime.datetime | None = None
    inner: Model | None = None
    points: list[Point] = []


class Aliased(pydantic.BaseModel):
    """A model whose JSON name differs from the Python name, with a field that is never dumped."""

    order_id: str = pydantic.Field(alias="orderId")
    hidden: str = pydantic.Field(default="", exclude=True)

    @pydantic.computed_field  # type: ignore[prop-decorator]  # pydantic's own way to write it
    @property
    def shout(self) -> str:
        return self.order_id.upper()


class Strict(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True, extra="forbid", frozen=True)
    when: datetime.datetime
    tags: frozenset[str]


class Open(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    name: str


class Names(pydantic.RootModel[list[str]]):
    pass


Kept = TypeVar("Kept")


class Box(pydantic.BaseModel, Generic[Kept]):
    kept: Kept


IntBox = Box[int]

PARIS = zoneinfo.ZoneInfo("Europe/Paris")

SAMPLES: list[object] = [
    None,
    0,
    -1,
    False,
    True,
    "",
    [],
    {},
    "naïve ☃ 𝄞 \x00 \u2028",
    2**53,
    -(2**200),
    10**5000,
    0.1,
    -0.0,
    5e-324,
    1e308,
    complex(1, -0.0),
    b"",
    bytes(range(256)),
    bytearray(b"abc"),
    decimal.Decimal("1.10"),
    decimal.Decimal("-0"),
    decimal.Decimal("1E+400"),
    decimal.Decimal("Infinity"),
    uuid.UUID(int=7),
    datetime.datetime(2024, 2, 29, 12, 30, 0, 1),  # noqa: DTZ001  # without a zone on purpose
    datetime.datetime(2024, 2, 29, tzinfo=datetime.UTC),
    datetime.datetime(2024, 2, 29, tzinfo=datetime.timezone(datetime.timedelta(hours=5, minutes=30, seconds=7))),
    datetime.date.min,
    datetime.time(23, 59, 59, 999_999),
    datetime.time(1, 2, tzinfo=datetime.UTC),
    datetime.timedelta(days=-1, microseconds=1),
    Colour.RED,
    Colour.BLUE,
    Size.SMALL,
    Word.YES,
    Right.READ,
    Right.READ | Right.WRITE,
    Right(0),
    (),
    (1, (2, [3])),
    {1, 2, 3},
    frozenset({"a", ("b",)}),
    {frozenset({1}), frozenset()},
    {1: "a", None: "b", (1, 2): "c", "text": "d"},
    {"$": "decimal", "v": "1"},
    {"$": {"$": 1}},
    {"a": {"$": [{"$": None}]}},
    Point(1),
    Line(Point(1, 2), None, (decimal.Decimal("0.1"),)),
    Pair(1, [Pair(None, "x")]),
    Old(1, {"two"}),
    Model(amount=decimal.Decimal("1.10"), when=datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)),
    Model(amount=decimal.Decimal(1), inner=Model(amount=decimal.Decimal(2)), points=[Point(3, 4)]),
    Aliased(orderId="a-1", hidden="s"),
    Strict(when=datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC), tags=frozenset({"a"})),
    Open(name="n", anything=[decimal.Decimal(1)]),  # type: ignore[call-arg]  # extra fields are allowed
    Names(["a", "b"]),
    IntBox(kept=1),
]


@pytest.mark.parametrize("value", SAMPLES, ids=lambda value: type(value).__name__)
def test_a_result_comes_back_equal_and_of_the_same_type(value: object) -> None:
    back = decode(encode(value))

    assert back == value
    assert type(back) is type(value)


@pytest.mark.parametrize("value", SAMPLES, ids=lambda value: type(value).__name__)
def test_a_result_inside_containers_comes_back_equal(value: object) -> None:
    nested = {"list": [value], "tuple": (value, (value,)), "pair": Pair(value, None), "$": value, 1: {2: value}}

    assert decode(encode(nested)) == nested


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, -0.0, complex(-0.0, math.nan)])
def test_numbers_that_json_or_equality_confuse_come_back_exactly(number: complex) -> None:
    back = decode(encode([number]))

    assert repr(back) == repr([number])


def test_a_decimal_that_is_not_a_number_comes_back() -> None:
    for text in ("NaN", "-NaN123", "sNaN"):
        back = decode(encode(decimal.Decimal(text)))

        assert str(back) == text


def test_a_datetime_in_a_named_zone_comes_back_as_the_same_instant() -> None:
    moment = datetime.datetime(2024, 7, 1, 12, tzinfo=PARIS)

    back = decode(encode(moment))

    assert back == moment


@pytest.mark.parametrize("fold", [0, 1])
def test_an_hour_that_happens_twice_keeps_its_fold(fold: int) -> None:
    moment = datetime.datetime(2024, 10, 27, 2, 30, tzinfo=PARIS, fold=fold)

    back = decode(encode(moment))

    assert isinstance(back, datetime.datetime)
    assert back.timestamp() == moment.timestamp()


def test_a_time_of_day_in_a_named_zone_is_refused_because_its_offset_depends_on_the_day() -> None:
    with pytest.raises(Unkeepable):
        encode(datetime.time(12, tzinfo=PARIS))


@pytest.mark.parametrize("text", ["\ud800", "a\udfff", "\ud83d\ude00", "\U0001f600\ude00"])
def test_lone_surrogates_survive_and_are_never_joined_into_a_pair(text: str) -> None:
    for value in (text, [text], {text: text}, Pair(text, {text})):
        assert decode(encode(value)) == value


def test_a_field_changed_after_construction_comes_back_changed() -> None:
    total = Total(5)

    back = decode(encode(total))

    assert back == total
    assert isinstance(back, Total)
    assert (back.cents, back.doubled) == (500, 1000)


def test_the_set_of_explicitly_given_model_fields_comes_back() -> None:
    model = Model(amount=decimal.Decimal(1))

    back = decode(encode(model))

    assert isinstance(back, Model)
    assert back.model_fields_set == {"amount"}


def test_a_set_is_encoded_in_one_order() -> None:
    one, other = [f"key-{number}" for number in range(50)], [f"key-{number}" for number in reversed(range(50))]

    assert encode(set(one)) == encode(set(other))


def test_a_dict_keeps_its_order() -> None:
    back = decode(encode({"b": 1, "a": 2}))
    odd = decode(encode({2: 1, 1: 2}))

    assert isinstance(back, dict)
    assert isinstance(odd, dict)
    assert list(back) == ["b", "a"]
    assert list(odd) == [2, 1]


class Text(str):
    __slots__ = ()


class Number(int):
    pass


class Silent:
    """A class that cannot be stored."""


@dataclasses.dataclass(slots=True)
class Unset:
    never: int = dataclasses.field(init=False)


def test_a_value_without_an_encoding_is_refused() -> None:
    unkeepable: list[object] = [
        lambda: None,
        io.BytesIO(),
        object(),
        Silent(),
        Point,
        Model,
        Colour,
        int,
        sys,
        range(3),
        iter([1]),
        ValueError("x"),
        # A subclass would come back as its parent, which is not the same.
        Text("x"),
        Number(1),
        Unset(),
    ]
    for value in unkeepable:
        for wrapped in (value, [value], {"a": value}, (value,), Pair(value, 1)):
            with pytest.raises(Unkeepable):
                encode(wrapped)


def test_an_open_file_is_refused() -> None:
    with open(__file__, "rb") as file, pytest.raises(Unkeepable):  # noqa: PTH123  # the plain builtin is the case
        encode(file)


def test_a_value_that_contains_itself_is_refused() -> None:
    ring: list[object] = []
    ring += [ring, ring]
    circle: dict[str, object] = {}
    circle["again"] = circle
    knot = Pair([], None)
    assert isinstance(knot.left, list)
    knot.left.append(knot)

    for value in (ring, circle, knot):
        with pytest.raises(Unkeepable, match=str(NESTING_MAX)):
            encode(value)


def test_nesting_up_to_the_limit_is_encoded() -> None:
    value: object = "core"
    for _ in range(NESTING_MAX):
        value = (value,)

    assert decode(encode(value)) == value
    with pytest.raises(Unkeepable):
        encode((value,))


def test_plain_json_is_encoded_as_itself() -> None:
    assert encode({"a": [1, "x", None, True, 1.5]}) == b'{"a":[1,"x",null,true,1.5]}'
    assert encode(decimal.Decimal("1.10")) == b'{"' + TAG.encode() + b'":"decimal","v":"1.10"}'


@pytest.mark.parametrize(
    "moment",
    [
        datetime.datetime(1, 1, 1, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin")),
        datetime.datetime.max.replace(tzinfo=zoneinfo.ZoneInfo("America/New_York")),
    ],
    ids=str,
)
def test_the_first_and_the_last_datetime_of_a_zone_are_encoded(moment: datetime.datetime) -> None:
    assert decode(encode(moment)) == moment


@pytest.mark.parametrize(
    "body",
    [b"{", b'{"$":"bytes"}', b'{"$":"decimal","v":"x"}', b'{"$":[],"v":1}', b'{"$":"set","v":[[]]}', b"[" * 100_000],
)
def test_damaged_bytes_are_an_outcome_that_is_not_kept(body: bytes) -> None:
    with pytest.raises(OutcomeNotKept):
        decode(body)
