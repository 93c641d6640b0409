"""A replayed result equals the original, with its type."""

from __future__ import annotations

import datetime
import decimal
import enum
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import pydantic
import pytest

from onceward import Ledger


class Colour(enum.Enum):
    RED = "red"


class Permission(enum.Flag):
    READ = 1
    WRITE = 2


class Pair(NamedTuple):
    left: int
    right: str


@dataclass(frozen=True)
class Money:
    amount: decimal.Decimal
    currency: str


@dataclass
class Receipt:
    order_id: uuid.UUID
    paid: Money
    at: datetime.datetime
    lines: list[Pair] = field(default_factory=list)


class Customer(pydantic.BaseModel):
    name: str
    colour: Colour
    born: datetime.date | None = None
    tags: tuple[str, ...] = ()


MOMENT = datetime.datetime(2024, 2, 29, 23, 59, 59, 999_999, tzinfo=datetime.UTC)
RECEIPT = Receipt(uuid.UUID(int=7), Money(decimal.Decimal("10.50"), "EUR"), MOMENT, [Pair(1, "a")])

RESULTS: list[object] = [
    None, 0, "", [], {}, (), False, True, 0.0, -0.0, 1.5, float("inf"), 2**70, -1, "ü\u2028😀", "\ud800", b"", b"\x00\xff",
    bytearray(b"x"), decimal.Decimal("1.10"), decimal.Decimal("-0"),
    MOMENT, MOMENT.date(), MOMENT.timetz(), datetime.timedelta(days=-1, microseconds=1), uuid.UUID(int=1), 1 + 2j,
    (1, [2, (3,)]), {1, 2}, frozenset({"a"}), {"a": {"b": None}}, {1: "int key", (2, 3): "tuple key"}, {"$": "a tag"},
    Colour.RED, Permission.READ | Permission.WRITE, Pair(1, "x"), Money(decimal.Decimal("0.10"), "EUR"), RECEIPT,
    Customer(name="Ada", colour=Colour.RED, born=MOMENT.date(), tags=("x",)), [RECEIPT, {"customer": None}],
]  # fmt: skip


@pytest.mark.parametrize("value", RESULTS, ids=repr)
def test_a_replayed_result_equals_the_original(open_ledger: Callable[[], Ledger], value: object) -> None:
    runs: list[int] = []

    def work() -> object:
        runs.append(1)
        return value

    first = open_ledger().blocking.run("order 1", work, effect="irreversible")
    again = open_ledger().blocking.run("order 1", work, effect="irreversible")

    assert first is value
    assert again == value
    assert type(again) is type(value)
    assert repr(again) == repr(value)
    assert runs == [1]
