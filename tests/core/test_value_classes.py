"""A class is rebuilt only when it is declared or already imported; reading a result never imports or runs other code."""

from __future__ import annotations

import dataclasses
import enum
import json
import sys
import types
from typing import NamedTuple, Self

import pydantic
import pytest

from onceward.core.moved import RENAMED
from onceward.core.outcome import Outcome, cut, pack, unpack
from onceward.core.value import decode, encode
from onceward.errors import OutcomeNotKept


@dataclasses.dataclass
class Receipt:
    number: str
    lines: int = 0


@dataclasses.dataclass
class Invoice:
    """A class with the same fields as `Receipt`, so that only the name tells them apart."""

    number: str
    lines: int = 0
    receipt: object = None


class Money(NamedTuple):
    amount: int


class State(enum.Enum):
    OPEN = 1


class Transfer(pydantic.BaseModel):
    """A model whose two fields have each other's name as alias, and which allows extra fields."""

    model_config = pydantic.ConfigDict(extra="allow")

    sender: str = pydantic.Field(alias="receiver")
    receiver: str = pydantic.Field(alias="sender")
    amount: int = pydantic.Field(5, alias="sum")


class Counter(pydantic.BaseModel):
    """A model with a private attribute, and a constructor that changes a field."""

    count: int
    _seen: list[int] = pydantic.PrivateAttr(default_factory=list)

    def model_post_init(self, context: object, /) -> None:
        super().model_post_init(context)
        self._seen.append(self.count)
        self.count += 1


class Order(pydantic.BaseModel):
    number: str


def stored_as(name: str, value: object) -> bytes:
    """Return the stored form of a value as if its class had had another name when it was stored."""
    form = json.loads(encode(value))
    form["c"] = name
    return json.dumps(form).encode()


def test_decoding_never_imports_a_module() -> None:
    # A module of the standard library that nothing here uses, with a dataclass-like name in it.
    module = "xmlrpc.server"
    assert module not in sys.modules

    with pytest.raises(OutcomeNotKept, match="not imported"):
        decode(stored_as(f"{module}:Point", Receipt("r-1")))

    assert module not in sys.modules


def test_a_lazy_module_is_not_asked_for_names_it_has_not_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    lazy = types.ModuleType("lazy_shop")
    lazy.__getattr__ = asked.append  # type: ignore[method-assign]  # PEP 562, by hand
    monkeypatch.setitem(sys.modules, "lazy_shop", lazy)

    with pytest.raises(OutcomeNotKept):
        decode(stored_as("lazy_shop:Receipt", Receipt("r-1")))

    assert asked == []


@pytest.mark.parametrize("value", [Receipt("r-1", 2), Money(5), State.OPEN, Order(number="o-1")])
def test_a_renamed_class_is_rebuilt_as_the_declared_return_type(value: object) -> None:
    body = stored_as("shop.of.old:Renamed", value)

    assert decode(body, type(value)) == value
    with pytest.raises(OutcomeNotKept):
        decode(body)


@pytest.mark.parametrize("value", [Receipt("r-1", 2), Money(5), State.OPEN, Order(number="o-1")])
def test_a_renamed_class_of_onceward_is_rebuilt_from_its_old_name(
    value: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(RENAMED, "shop.of.old:Renamed", f"{__name__}:{type(value).__name__}")

    assert decode(stored_as("shop.of.old:Renamed", value)) == value


@pytest.mark.parametrize("declared", [int, dict, State, Money, Order])
def test_a_declared_type_with_other_fields_is_not_used(declared: type) -> None:
    with pytest.raises(OutcomeNotKept):
        decode(stored_as("shop.of.old:Renamed", Receipt("r-1")), declared)


def test_the_declared_type_is_used_for_the_whole_result_and_never_for_a_part() -> None:
    form = json.loads(encode(Invoice("i-1", receipt=Receipt("r-1"))))
    form["v"]["receipt"]["c"] = "shop.of.old:Renamed"

    with pytest.raises(OutcomeNotKept, match=r"shop\.of\.old:Renamed"):
        decode(json.dumps(form).encode(), Invoice)


def test_a_class_inside_a_function_is_rebuilt_if_it_is_declared() -> None:
    @dataclasses.dataclass
    class Local:
        inner: object

    value = Local(Local(1))

    assert decode(encode(value), Local) == value
    with pytest.raises(OutcomeNotKept):
        decode(encode(value))


@pytest.mark.parametrize("name", ["os:system", "builtins:eval", "onceward:nothing.here", "builtins:int", ":", "", "os"])
def test_a_name_that_is_not_a_matching_class_is_refused(name: str) -> None:
    for value in (Receipt("r-1"), Money(5), State.OPEN, Order(number="o-1")):
        with pytest.raises(OutcomeNotKept):
            decode(stored_as(name, value))


@pytest.mark.parametrize("value", [Receipt("r-1"), Order(number="o-1")])
def test_a_class_that_lost_a_field_raises_outcome_not_kept(value: object) -> None:
    form = json.loads(encode(value))
    form["v"]["colour"] = "red"

    with pytest.raises(OutcomeNotKept, match="colour"):
        decode(json.dumps(form).encode())


@pytest.mark.parametrize("value", [Receipt("r-1"), Order(number="o-1")])
def test_a_class_that_gained_a_required_field_raises_outcome_not_kept(value: object) -> None:
    form = json.loads(encode(value))
    del form["v"]["number"]

    with pytest.raises(OutcomeNotKept, match="number"):
        decode(json.dumps(form).encode())


def test_a_class_that_gained_a_field_with_a_default_uses_the_default() -> None:
    form = json.loads(encode(Receipt("r-1", 5)))
    del form["v"]["lines"]

    assert decode(json.dumps(form).encode()) == Receipt("r-1", 0)


def test_an_enum_that_lost_a_member_raises_outcome_not_kept() -> None:
    form = json.loads(encode(State.OPEN))
    form["v"] = "GONE"

    with pytest.raises(OutcomeNotKept):
        decode(json.dumps(form).encode())


def test_a_kind_of_value_from_a_newer_version_is_named() -> None:
    with pytest.raises(OutcomeNotKept, match="newer"):
        decode(b'{"$":"quaternion","v":"1"}')


@dataclasses.dataclass
class Grumpy:
    number: int

    def __post_init__(self) -> None:
        if self.number == 7:
            raise RuntimeError("not today")


def test_a_class_that_refuses_its_own_values_raises_outcome_not_kept() -> None:
    grumpy = Grumpy(1)
    grumpy.number = 7

    with pytest.raises(OutcomeNotKept, match="not today"):
        decode(encode(grumpy))


class Hostile(enum.Enum):
    """A class whose own code fails when it is inspected."""

    ONE = 1

    @property
    def name(self) -> str:
        raise RuntimeError("do not look")


@pytest.mark.parametrize("value", [lambda: None, object(), Receipt, Hostile.ONE, "\ud800" * 40_000])
def test_packing_never_raises_because_the_effect_is_done(value: object) -> None:
    assert pack(value, 1000) is None


def test_packing_accepts_a_body_up_to_the_limit_and_not_a_byte_more() -> None:
    assert pack("x" * 8, 10) == b'"xxxxxxxx"'
    assert pack("x" * 9, 10) is None


@pytest.mark.parametrize("value", [None, 0, "", [], False])
def test_an_empty_result_is_a_result_like_any_other(value: object) -> None:
    body = pack(value, 100)

    assert body is not None
    assert Outcome(body=body).kept
    assert unpack(body) == value


def test_a_result_that_was_not_kept_raises_outcome_not_kept() -> None:
    assert not Outcome().kept
    assert Outcome(body=b"").kept
    assert Outcome(chunks=1).kept
    with pytest.raises(OutcomeNotKept, match="will not run again"):
        unpack(None)


@pytest.mark.parametrize(("size", "sizes"), [(0, []), (1, [1]), (65_536, [65_536]), (65_537, [65_536, 1])])
def test_a_body_is_split_into_chunks_that_join_to_it(size: int, sizes: list[int]) -> None:
    body = bytes(size)

    chunks = cut(body)

    assert [len(chunk) for chunk in chunks] == sizes
    assert b"".join(chunks) == body


def test_a_model_whose_aliases_are_names_of_other_fields_keeps_every_value() -> None:
    transfer = Transfer.model_validate({"receiver": "ann", "sender": "bob", "amount": 7})
    kept = decode(encode(transfer))

    assert isinstance(kept, Transfer)
    assert kept == transfer
    assert (kept.sender, kept.receiver, kept.amount, kept.model_extra) == ("ann", "bob", 5, {"amount": 7})
    assert kept.model_fields_set == transfer.model_fields_set


def test_a_model_that_changes_itself_on_creation_is_not_changed_again() -> None:
    counter = Counter(count=1)

    kept = decode(encode(counter))

    assert isinstance(kept, Counter)
    assert (kept.count, kept._seen) == (counter.count, counter._seen) == (2, [1])


@dataclasses.dataclass
class Seeded:
    """A constructor with an argument that is not a field."""

    total: int
    seed: dataclasses.InitVar[int]

    def __post_init__(self, seed: int) -> None:
        self.total += seed


@dataclasses.dataclass(init=False)
class HandMade:
    total: int

    def __init__(self, one: int, other: int) -> None:
        self.total = one + other


@dataclasses.dataclass(frozen=True, slots=True)
class Sealed:
    total: int
    seed: dataclasses.InitVar[int]


class Sum(NamedTuple):
    total: int


class Added(Sum):
    def __new__(cls, one: int, other: int) -> Self:
        return super().__new__(cls, one + other)


@pydantic.dataclasses.dataclass
class Renamed:
    total: int = pydantic.Field(alias="sum")


@pytest.mark.parametrize(
    "value",
    [Seeded(1, 2), HandMade(1, 2), Sealed(1, 2), Added(1, 2), Renamed(sum=3)],
    ids=lambda value: type(value).__name__,
)
def test_a_class_with_its_own_constructor_comes_back_unchanged(value: object) -> None:
    found = decode(encode(value))

    assert (found, type(found)) == (value, type(value))


def test_a_missing_field_of_a_class_with_its_own_constructor_is_named() -> None:
    body = encode(Seeded(1, 2)).replace(b'"total":3', b"")

    with pytest.raises(OutcomeNotKept, match="total"):
        decode(body)


def test_private_attributes_come_back_if_they_can_be_encoded() -> None:
    counter = Counter(count=1)
    counter._seen.append(7)

    assert decode(encode(counter)) == counter
