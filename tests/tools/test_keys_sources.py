"""Sources of keys: text only, and nothing that differs in the next process."""

# ruff: noqa: ARG001  # Tools have arguments because their calls differ by them.

from __future__ import annotations

import asyncio
import datetime
import decimal
import enum
import uuid
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.tools.tool_harness import ToolHarness

from onceward import Ledger, open_ledger
from onceward.errors import InvalidKey, InvalidOption, OncewardError
from onceward.tools.keys import scope_of
from onceward.tools.tool import Tool, tool
from onceward.turns import (
    BeatIdempotencyManager,
    IdempotencyCache,
    LogicalTurn,
    Toolbox,
    build_tool_idempotency_key,
    extract_business_key,
)
from onceward.turns.adapters.functions import functions

ADDRESS = " at 0x"


class Order:
    """An object without a text of its own."""


class Loud(str):
    """A string whose `__str__` returns another text."""

    __slots__ = ()

    def __str__(self) -> str:
        return object.__repr__(self)


async def no_text() -> str:
    return "group"


def one_argument(group: str) -> str:
    return group


@dataclass(frozen=True)
class Turn:
    turn_group_id: Any = "XYZ"


def refund_tool(done: list[str], **options: Any) -> Tool:
    @tool(**{"effect": "irreversible", "template": "order:{order_id}", **options})
    def refund(order_id: str, amount: int = 0, trace: str = "") -> int:
        done.append(order_id)
        return len(done)

    return refund


# Invalid names of a group.
NO_GROUP: dict[str, Any] = {
    "nothing": None,
    "empty": "",
    "a line": "a\nb",
    "a number": 7,
    "a truth": True,
    "bytes": b"group",
    "a uuid": uuid.UUID(int=1),
    "an object": Order(),
    "its text": str(Order()),
    "a function of nothing": lambda: None,
    "a function of a number": lambda: 7,
    "a function of an object": Order,
    "a function of the empty text": str,
    "a function that takes something": one_argument,
    "a coroutine function": no_text,
}
no_group = pytest.mark.parametrize("group", NO_GROUP.values(), ids=NO_GROUP)


@no_group
def test_a_toolbox_refuses_a_group_that_is_not_text_before_the_effect(ledger: Ledger, group: Any) -> None:
    done: list[str] = []
    harness = ToolHarness(ledger, refund_tool(done))

    with pytest.raises(InvalidOption, match="turn_group_id"):
        harness.call_as("refund", {"order_id": "1"}, turn_group_id=group)

    assert done == []
    assert asyncio.run(ledger.scan()).entries == ()


@no_group
def test_functions_refuse_a_group_that_is_not_text_before_the_effect(ledger: Ledger, group: Any) -> None:
    done: list[str] = []

    async def call() -> None:
        await functions(Toolbox([refund_tool(done)]), ledger, turn_group_id=group)["refund"](order_id="1")

    with pytest.raises(InvalidOption, match="turn_group_id"):
        asyncio.run(call())

    assert done == []


def test_functions_refuse_an_invalid_group_at_construction(ledger: Ledger) -> None:
    for group in (None, "", 7, one_argument, no_text):
        with pytest.raises(InvalidOption, match="turn_group_id"):
            functions(Toolbox(), ledger, turn_group_id=group)  # type: ignore[arg-type]


@no_group
def test_a_key_is_not_built_for_a_turn_without_a_group(group: Any) -> None:
    if isinstance(group, uuid.UUID):
        return  # the turns of others have them

    with pytest.raises(InvalidOption, match="turn_group_id"):
        build_tool_idempotency_key("refund", "order:1", Turn(group))


def test_a_function_takes_the_group_at_each_call(ledger: Ledger) -> None:
    done: list[str] = []
    current = ContextVar("current", default="first")
    refund = functions(Toolbox([refund_tool(done)]), ledger, turn_group_id=current.get)["refund"]

    async def calls() -> list[Any]:
        before = [(await refund(order_id="1"))["key"] for _ in range(2)]
        current.set("second")
        return [*before, (await refund(order_id="1"))["key"]]

    keys = asyncio.run(calls())

    assert keys == [f"refund:order:1:turn_group:{group}" for group in ("first", "first", "second")]
    assert done == ["1", "1"]


def test_the_group_of_a_turn_may_be_a_uuid_or_a_function() -> None:
    group = uuid.UUID(int=7)

    assert build_tool_idempotency_key("refund", "1", Turn(group)) == f"refund:1:turn_group:{group}"
    assert build_tool_idempotency_key("refund", "1", Turn(lambda: "g")) == "refund:1:turn_group:g"


@pytest.mark.parametrize(
    "name", [None, 7, Order(), refund_tool, b"refund", "", str(Order())], ids=lambda name: type(name).__name__
)
def test_a_tool_is_named_by_text_or_by_itself(name: Any) -> None:
    with pytest.raises(InvalidOption, match="tool"):
        build_tool_idempotency_key(name, "order:1", Turn())
    with pytest.raises(InvalidOption, match="tool"):
        build_tool_idempotency_key(name, tool_args={"order_id": "1"}, logical_turn=Turn())
    with pytest.raises(InvalidOption, match="tool"):
        extract_business_key(name, {"order_id": "1"})


@pytest.mark.parametrize("business", [7, Order(), b"order:1", ["order:1"]], ids=lambda key: type(key).__name__)
def test_a_business_key_must_be_text(business: Any) -> None:
    with pytest.raises((InvalidOption, InvalidKey)):
        build_tool_idempotency_key("refund", business, Turn())


@pytest.mark.parametrize(
    ("options", "arguments"),
    [
        ({}, {"order_id": "12345", "amount": 5}),
        ({"template": None, "key_fields": ["order_id", "amount"]}, {"order_id": "12345"}),
        ({"template": None, "key_fields": ["amount"]}, {"order_id": "1", "amount": 5.0}),
        ({"template": None}, {"order_id": "12345", "amount": 5}),
        ({"template": None}, {"order_id": "12345", "amount": 0}),
        ({"template": None, "volatile": ["trace"]}, {"order_id": "12345", "trace": "x"}),
    ],
    ids=["template", "a default is a field", "a whole float", "all", "a default that is said", "volatile"],
)
def test_a_tool_has_its_own_key(ledger: Ledger, options: dict[str, Any], arguments: dict[str, Any]) -> None:
    refund = refund_tool([], **options)
    planned = ToolHarness(ledger, refund).toolbox.plan("refund", arguments, turn_group_id="XYZ").key

    business = extract_business_key(refund, arguments)
    keys = {
        build_tool_idempotency_key(refund, business, Turn()),
        build_tool_idempotency_key(refund, arguments, Turn()),
        build_tool_idempotency_key(refund, tool_args=arguments, logical_turn=Turn()),
    }

    assert keys == {planned}


def test_the_key_fields_of_a_tool_are_used() -> None:
    refund = refund_tool([])

    assert extract_business_key(refund, {"order_id": "12345", "amount": 3}) == "order:12345"
    with pytest.raises(InvalidOption, match="key"):
        extract_business_key(refund, {"order_id": "12345"}, ["amount"])


class Colour(enum.Enum):
    RED = "red"
    ODD = Order()


# Values that are passed where text is required.
anything = st.one_of(
    st.sampled_from(
        [None, True, Order(), Order, Loud("loud"), Colour.RED, Colour.ODD, len, [].append, no_text, (Order(),), b"b"]
    ),
    st.builds(Loud, st.text(max_size=4)),
    st.text(max_size=5),
    st.integers(),
    st.floats(),
    st.uuids(),
    st.decimals(),
    st.datetimes(timezones=st.just(datetime.UTC)),
    st.lists(st.builds(Order), max_size=1),
    st.dictionaries(st.text(max_size=2), st.builds(Order), max_size=1),
)


def keys_of(make: Callable[[], str]) -> list[str]:
    try:
        return [make()]
    except OncewardError:
        return []  # refused, which is the other right answer


@given(anything, anything, anything)
def test_no_key_ever_contains_a_memory_address(name: Any, value: Any, group: Any) -> None:
    refund = refund_tool([])
    made = [
        *keys_of(lambda: build_tool_idempotency_key(name, value, Turn("g"))),
        *keys_of(lambda: build_tool_idempotency_key("refund", value, Turn(group))),
        *keys_of(lambda: build_tool_idempotency_key(refund, {"order_id": value}, Turn(group))),
        *keys_of(lambda: build_tool_idempotency_key("t", tool_args={"a": value}, logical_turn=Turn(group))),
        *keys_of(lambda: extract_business_key(name, {"a": value}, ["a"])),
        *keys_of(lambda: extract_business_key("t", {"a": value}, template="x:{a}")),
        *keys_of(lambda: extract_business_key("t", {"a": value})),
        *keys_of(lambda: Toolbox([refund]).plan("refund", {"order_id": value}, turn_group_id=group).key),
        *keys_of(lambda: scope_of("tool", value, group)),
    ]

    assert [key for key in made if ADDRESS in key or not isinstance(key, str)] == []


@given(anything)
def test_no_key_of_a_function_ever_contains_a_memory_address(value: Any) -> None:
    with open_ledger("memory:") as ledger:

        @ledger.once(key="charge:{order}", effect="pure", ignore=("order",))
        def by_template(order: Any) -> str:
            return "done"

        @ledger.once(key=lambda order: f"charge:{order}", effect="pure", ignore=("order",))
        def by_text(order: Any) -> str:
            return "done"

        @ledger.once(key=lambda order: order, effect="pure", ignore=("order",))
        def by_value(order: Any) -> str:
            return "done"

        for charge in (by_template, by_text, by_value):
            keys_of(lambda charge=charge: charge(value))  # type: ignore[misc]
        keys_of(lambda: ledger.blocking.run(f"run:{value}", lambda: "done", effect="pure"))

        kept = ledger.blocking.scan(limit=100).entries

    assert [entry.key for entry in kept if ADDRESS in entry.key] == []


def test_user_text_that_looks_like_a_memory_address_is_a_valid_key() -> None:
    assert extract_business_key("find", {"q": "segfault at 0x7ffd"}, ["q"]) == "segfault at 0x7ffd"


def test_a_subclass_of_str_is_used_as_its_plain_text() -> None:
    assert extract_business_key("find", {"q": Loud("loud")}, ["q"]) == "loud"


def test_a_decimal_and_a_date_have_one_text_each() -> None:
    arguments = {"price": decimal.Decimal("1.10"), "day": datetime.date(2026, 2, 17)}

    assert extract_business_key("book", arguments, ["price", "day"]) == "1.10:2026-02-17"


@pytest.mark.parametrize("wrong", [None, Order(), 7], ids=["nothing", "an object", "a number"])
def test_the_cache_refuses_keys_and_fingerprints_that_are_not_text(ledger: Ledger, wrong: Any) -> None:
    cache = IdempotencyCache(ledger)

    for key, fingerprint in ((wrong, "f"), ("k", wrong), (str(Order()), "f")):
        with pytest.raises(OncewardError):
            asyncio.run(cache.check_and_set(key, fingerprint))
    assert asyncio.run(ledger.scan()).entries == ()


@pytest.mark.parametrize(
    ("tenant", "messages"),
    [(Order(), ["1"]), (None, ["1"]), ("acme", [Order()]), ("acme", [None])],
    ids=["object", "none", "ids of objects", "ids of none"],
)
def test_a_beat_is_identified_by_ids(ledger: Ledger, tenant: Any, messages: list[Any]) -> None:
    beats = BeatIdempotencyManager(IdempotencyCache(ledger))

    with pytest.raises(InvalidOption):
        asyncio.run(beats.check_beat(LogicalTurn(messages=messages), tenant))


@pytest.mark.parametrize(
    "who", [{"principal": Order()}, {"principal": None}, {"tenant_id": Order()}], ids=["principal", "none", "tenant"]
)
def test_callers_are_named_by_text(ledger: Ledger, who: dict[str, Any]) -> None:
    done: list[str] = []

    with pytest.raises(InvalidOption):
        ToolHarness(ledger, refund_tool(done)).call_as("refund", {"order_id": "1"}, **who)

    assert done == []
