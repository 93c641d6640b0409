"""Planning a call: the key and the fingerprint that its arguments make."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from onceward import open_ledger
from onceward.core.claim import Entry, Status
from onceward.errors import InvalidInput, InvalidKey, InvalidOption
from onceward.tools.call import Call, plan
from onceward.tools.tool import ARGUMENTS_BYTES_MAX, Tool, tool


@tool(effect="irreversible", key_fields=["order", "currency"])
def refund(order: int, currency: str = "EUR", why: Any = None) -> None: ...


@tool(effect="irreversible", template="order:{order[id]}")
def refund_whole(order: dict[str, Any]) -> None: ...


@tool(effect="irreversible", key_fields=["order"])
def refund_anything(**options: Any) -> None: ...


def planned(declared: Tool, /, **arguments: Any) -> Call:
    return plan(declared, arguments, principal="alice", tenant_id="acme", turn_group_id="g")


def test_an_omitted_key_field_has_the_default_of_the_function() -> None:
    left_out, spelled = planned(refund, order=1), planned(refund, order=1, currency="EUR")

    assert left_out.key == spelled.key == "refund:1:EUR:turn_group:g"
    assert left_out.fingerprint == spelled.fingerprint


def test_a_value_that_only_equals_the_default_is_another_call() -> None:
    @tool(effect="irreversible")
    def note(flag: Any = 0) -> None: ...

    assert planned(note).key == planned(note, flag=0).key != planned(note, flag=False).key


def test_a_whole_number_is_passed_as_an_integer() -> None:
    found = planned(refund, order=5.0)

    assert found.arguments == {"order": 5}
    assert type(found.arguments["order"]) is int


def test_a_key_may_be_a_nested_field() -> None:
    found, other = planned(refund_whole, order={"id": "5", "n": 1}), planned(refund_whole, order={"id": "5", "n": 2})

    assert found.key == other.key == "refund_whole:order:5:turn_group:g"
    assert found.fingerprint != other.fingerprint


@pytest.mark.parametrize("order", [{}, {"id": None}], ids=["missing", "null"])
def test_a_nested_key_must_exist(order: dict[str, Any]) -> None:
    with pytest.raises(InvalidKey):
        planned(refund_whole, order=order)


def test_a_tool_with_any_arguments_is_keyed_by_the_named_ones() -> None:
    assert planned(refund_anything, order="5", x=1).key == "refund_anything:5:turn_group:g"
    with pytest.raises(InvalidKey):
        planned(refund_anything, x=1)


@pytest.mark.parametrize(
    "why",
    [datetime.date(2026, 2, 17), float("nan"), "\ud800", {1, 2}, "x" * ARGUMENTS_BYTES_MAX],
    ids=["a date", "not a number", "half a character", "a set", "too large"],
)
def test_arguments_are_json_of_a_limited_size(why: object) -> None:
    with pytest.raises(InvalidInput):
        planned(refund, order=1, why=why)


def test_arguments_are_converted_to_their_recorded_form() -> None:
    assert planned(refund, order=1, why=(1, {2: "x"})).arguments == {"order": 1, "why": [1, {"2": "x"}]}


def test_numbers_beyond_json_precision_are_told_apart() -> None:
    @tool(effect="irreversible")
    def note(number: int) -> None: ...

    assert planned(note, number=2**60).key != planned(note, number=2**60 + 1).key


def test_a_corrected_call_has_another_provider_key() -> None:
    first, corrected = planned(refund, order=1, why="a"), planned(refund, order=1, why="b")
    entry = Entry("onceward:tool", first.key, "", Status.IN_PROGRESS, 1, 1, "", "", True, 0, None, 1_000)

    with open_ledger("memory:") as ledger, open_ledger("memory:", namespace="other") as other:
        keys = [call.of_attempt(ledger, entry, 1).provider_key for call in (first, corrected, first)]
        assert first.key == corrected.key
        assert keys[0] == keys[2] != keys[1]
        assert keys[0] == first.of_attempt(ledger, entry, 2).provider_key
        assert keys[0] != first.of_attempt(other, entry, 1).provider_key


@tool(effect="irreversible", key_fields=["order"], once="ever")
def refund_ever(order: int, currency: str = "EUR") -> None: ...


@pytest.mark.parametrize(
    ("whose", "group"), [({"turn_group_id": "a"}, "a"), ({}, ""), ({"idempotency_key": "retry-1"}, "")]
)
def test_a_call_that_happens_once_ever_has_one_key_whatever_its_group(whose: dict[str, str], group: str) -> None:
    call = plan(refund_ever, {"order": 1}, principal="alice", tenant_id="acme", **whose)  # type: ignore[arg-type]

    assert (call.key, call.scope, call.turn_group_id) == ("refund_ever:1", "ever:acme:alice", group)


def test_a_group_of_a_call_that_happens_once_ever_must_be_valid() -> None:
    with pytest.raises(InvalidOption, match="turn_group_id must be"):
        plan(refund_ever, {"order": 1}, principal="alice", tenant_id="acme", turn_group_id=7)


def test_once_ever_and_once_for_a_group_share_no_scope() -> None:
    grouped, forever = planned(refund, order=1), planned(refund_ever, order=1)

    assert len({grouped.scope, grouped.undo_scope, forever.scope, forever.undo_scope}) == 4
