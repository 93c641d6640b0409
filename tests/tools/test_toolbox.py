"""Calls of tools: one effect for one key, and the same result for every caller."""

# ruff: noqa: ARG001  # Tools have arguments because their calls differ by them.

from __future__ import annotations

import dataclasses
import datetime
import decimal
import uuid
from typing import Any

import pytest
from tests.tools.tool_harness import GROUP, Bank, CountingGate, ToolHarness

from onceward import Ledger
from onceward.testing import PinnedClock
from onceward.tools.envelope import CallStatus
from onceward.tools.tool import tool


@pytest.fixture
def bank() -> Bank:
    return Bank()


@pytest.mark.parametrize("backend", ["memory", "sqlite", "postgres"], indirect=True)
def test_the_first_call_runs_and_every_further_one_gets_its_result(ledger: Ledger, bank: Bank) -> None:
    harness = ToolHarness(ledger, bank.refund())

    first = harness.call("refund", order_id="12345", amount=5)
    again = harness.call("refund", order_id="12345", amount=5)

    assert (first.status, first.result) == (CallStatus.DONE, {"refund": 1})
    assert (again.status, again.result) == (CallStatus.REPLAYED, {"refund": 1})
    assert first.key == again.key == f"refund:order:12345:turn_group:{GROUP}"
    assert first.receipt == again.receipt
    assert len(bank.refunds) == 1


def test_the_envelope_can_be_read_by_a_model(ledger: Ledger, bank: Bank) -> None:
    shown = ToolHarness(ledger, bank.refund(version="3")).call("refund", order_id="1").json()

    names = ["status", "tool", "key", "result", "receipt", "may_retry", "how_to_check", "detail", "code", "first_at"]
    assert list(shown) == names
    assert (shown["status"], shown["tool"]) == ("done", "refund")
    receipt = shown["receipt"]
    assert isinstance(receipt, dict)
    assert (shown["code"], shown["first_at"]) == ("", receipt["at"])
    assert (receipt["tool"], receipt["tool_version"], receipt["attempt"]) == ("refund", "3", 1)


@pytest.mark.parametrize("empty", [{}, None, [], "", 0, False], ids=repr)
def test_an_empty_result_is_a_result(ledger: Ledger, empty: object) -> None:
    bank = Bank(empty)
    harness = ToolHarness(ledger, bank.refund())

    first, again = harness.call("refund", order_id="1"), harness.call("refund", order_id="1")

    assert (first.status, again.status) == (CallStatus.DONE, CallStatus.REPLAYED)
    assert again.result == first.result == empty
    assert type(again.result) is type(empty)
    assert len(bank.refunds) == 1


@pytest.mark.parametrize("arguments", [{}, {"order_id": None}], ids=["missing", "null"])
def test_a_key_field_that_is_missing_or_null_is_refused_before_the_effect(
    ledger: Ledger, bank: Bank, arguments: dict[str, Any]
) -> None:
    envelope = ToolHarness(ledger, bank.refund()).call("refund", **arguments)

    assert (envelope.status, envelope.may_retry) == (CallStatus.REFUSED, False)
    assert "order_id" in envelope.detail
    assert bank.refunds == []


def test_a_key_field_that_is_left_to_its_default_is_missing_if_that_is_null(ledger: Ledger) -> None:
    @tool(effect="irreversible", key_fields=["order_id"])
    def refund(order_id: str | None = None) -> None:
        raise AssertionError

    assert ToolHarness(ledger, refund).call("refund").status is CallStatus.REFUSED


def test_the_same_key_with_other_arguments_is_refused_and_does_not_get_the_old_result(
    ledger: Ledger, bank: Bank
) -> None:
    harness = ToolHarness(ledger, bank.refund())
    harness.call("refund", order_id="1", amount=5)

    envelope = harness.call("refund", order_id="1", amount=6)

    assert (envelope.status, envelope.result, envelope.may_retry) == (CallStatus.REFUSED, None, False)
    assert "mismatch" in envelope.detail
    assert len(bank.refunds) == 1


def test_an_unknown_tool_is_refused(ledger: Ledger, bank: Bank) -> None:
    envelope = ToolHarness(ledger, bank.refund()).call("refunds", order_id="1")

    assert envelope.status is CallStatus.REFUSED
    assert "refund" in envelope.detail


@pytest.mark.parametrize(
    "bad", [{"order_id": "a\0b"}, {"order_id": "\ud800"}, {"order_id": "1", "meta": object()}, {"order_id": "x" * 2000}]
    , ids=["nul", "half a character", "no json", "too long"],
)  # fmt: skip
def test_unstorable_arguments_are_refused(ledger: Ledger, bank: Bank, bad: dict[str, Any]) -> None:
    assert ToolHarness(ledger, bank.refund()).call("refund", **bad).status is CallStatus.REFUSED
    assert bank.refunds == []


# Near duplicates.


def drawn() -> dict[str, Any]:
    at = datetime.datetime.now(datetime.UTC).isoformat()
    return {"trace": str(uuid.uuid4()), "when": at, "meta": {"request": str(uuid.uuid4()), "why": "late"}}


def test_a_call_that_differs_only_in_ids_and_times_is_the_same_call(ledger: Ledger, bank: Bank) -> None:
    harness = ToolHarness(ledger, bank.refund())

    first, again = harness.call("refund", order_id="1", **drawn()), harness.call("refund", order_id="1", **drawn())

    assert (first.status, again.status) == (CallStatus.DONE, CallStatus.REPLAYED)


def test_a_time_that_means_something_can_be_declared_exact(ledger: Ledger, bank: Bank) -> None:
    harness = ToolHarness(ledger, bank.refund(exact=["when"]))
    harness.call("refund", order_id="1", when="2026-02-17T10:00:00Z")

    assert harness.call("refund", order_id="1", when="2026-02-17T11:00:00Z").status is CallStatus.REFUSED


def test_a_volatile_argument_does_not_make_another_call(ledger: Ledger, bank: Bank) -> None:
    harness = ToolHarness(ledger, bank.refund(volatile=["trace"]))
    harness.call("refund", order_id="1", trace="attempt 1")

    assert harness.call("refund", order_id="1", trace="attempt 2").status is CallStatus.REPLAYED
    assert harness.call("refund", order_id="1").status is CallStatus.REPLAYED


def test_a_volatile_argument_is_not_part_of_a_key_made_of_all_arguments(ledger: Ledger, bank: Bank) -> None:
    harness = ToolHarness(ledger, bank.refund(template=None, volatile=["trace"]))
    harness.call("refund", order_id="1", trace="attempt 1")

    assert harness.call("refund", order_id="1", trace="attempt 2").status is CallStatus.REPLAYED
    assert harness.call("refund", order_id="2", trace="attempt 1").status is CallStatus.DONE


def test_without_key_fields_every_argument_counts(ledger: Ledger, bank: Bank) -> None:
    harness = ToolHarness(ledger, bank.refund(template=None))

    assert harness.call("refund", order_id="1", **drawn()).status is CallStatus.DONE
    assert harness.call("refund", order_id="1", **drawn()).status is CallStatus.DONE


def test_an_id_is_the_same_as_a_number_and_as_text(ledger: Ledger, bank: Bank) -> None:
    harness = ToolHarness(ledger, bank.refund())
    harness.call("refund", order_id=12345)

    assert harness.call("refund", order_id="12345").status is CallStatus.REPLAYED
    assert harness.call("refund", order_id=12345.0).status is CallStatus.REPLAYED


def test_an_explicit_default_changes_nothing(ledger: Ledger, bank: Bank) -> None:
    harness = ToolHarness(ledger, bank.refund())
    harness.call("refund", order_id="1")

    assert harness.call("refund", order_id="1", amount=0).status is CallStatus.REPLAYED
    assert harness.call("refund", order_id="1", amount=False).status is CallStatus.REFUSED


# Separation of callers.


@pytest.mark.parametrize(
    "whose",
    [{"principal": "bob"}, {"tenant_id": "other"}, {"turn_group_id": "group-2"}],
    ids=["principal", "tenant", "group"],
)
def test_principals_tenants_and_groups_are_separate(ledger: Ledger, bank: Bank, whose: dict[str, str]) -> None:
    harness = ToolHarness(ledger, bank.refund())
    mine = harness.call("refund", order_id="1")

    other = harness.call_as("refund", {"order_id": "1"}, **whose)

    assert other.status is CallStatus.DONE
    assert other.result != mine.result
    assert len(bank.refunds) == 2


def test_the_same_text_in_another_layer_is_another_key(ledger: Ledger, bank: Bank) -> None:
    key = f"refund:order:1:turn_group:{GROUP}"
    ledger.blocking.run(key, lambda: "somebody else's", effect="pure")

    assert ToolHarness(ledger, bank.refund()).call("refund", order_id="1").result == {"refund": 1}


# Time and versions.


def test_a_call_is_remembered_for_as_long_as_its_tool_says(ledger: Ledger, bank: Bank, clock: PinnedClock) -> None:
    harness = ToolHarness(ledger, bank.refund(idempotent_for=60))
    harness.call("refund", order_id="1")
    clock.advance(59)
    assert harness.call("refund", order_id="1").status is CallStatus.REPLAYED
    clock.advance(2)

    assert harness.call("refund", order_id="1").status is CallStatus.DONE


def test_a_call_is_remembered_for_a_day_by_default(ledger: Ledger, bank: Bank, clock: PinnedClock) -> None:
    harness = ToolHarness(ledger, bank.refund())
    harness.call("refund", order_id="1")
    clock.advance(24 * 3600 - 1)
    assert harness.call("refund", order_id="1").status is CallStatus.REPLAYED
    clock.advance(2)

    assert harness.call("refund", order_id="1").status is CallStatus.DONE


def test_a_new_version_of_a_tool_does_not_repeat_earlier_calls(ledger: Ledger, bank: Bank) -> None:
    ToolHarness(ledger, bank.refund(version="1")).call("refund", order_id="1", amount=5)

    @tool(effect="irreversible", template="order:{order_id}", version="2")
    def refund(order_id: str, amount: int, currency: str = "EUR") -> None:
        raise AssertionError

    envelope = ToolHarness(ledger, refund).call("refund", order_id="1", amount=5)

    assert (envelope.status, envelope.result) == (CallStatus.REPLAYED, {"refund": 1})
    assert envelope.receipt is not None
    assert envelope.receipt["tool_version"] == "1"


# Pure tools, and results of every kind.


def test_a_pure_tool_runs_every_time_and_is_not_recorded(ledger: Ledger) -> None:
    gate = CountingGate()
    asked: list[str] = []

    @tool(effect="pure")
    async def look_up(order_id: str) -> str:
        asked.append(order_id)
        return "shipped"

    harness = ToolHarness(ledger, look_up, gate=gate)

    assert [harness.call("look_up", order_id="1").status for _ in range(2)] == [CallStatus.DONE] * 2
    assert asked == ["1", "1"]
    assert ledger.blocking.scan().entries == ()
    assert (gate.fired, gate.ended) == ([], [])


def test_a_pure_tool_that_fails_may_be_called_again(ledger: Ledger) -> None:
    @tool(effect="pure")
    def look_up() -> None:
        raise ConnectionError("no route")

    envelope = ToolHarness(ledger, look_up).call("look_up")

    assert (envelope.status, envelope.may_retry) == (CallStatus.REFUSED, True)
    assert "no route" in envelope.detail


@dataclasses.dataclass
class Receipt:
    amount: decimal.Decimal
    at: datetime.date
    ids: tuple[uuid.UUID, ...]


def test_a_typed_result_reads_the_same_now_and_later(ledger: Ledger) -> None:
    bank = Bank(Receipt(decimal.Decimal("1.10"), datetime.date(2026, 2, 17), (uuid.UUID(int=1),)))
    harness = ToolHarness(ledger, bank.refund())

    first, again = harness.call("refund", order_id="1"), harness.call("refund", order_id="1")

    assert first.result == again.result == {"amount": "1.10", "at": "2026-02-17", "ids": [str(uuid.UUID(int=1))]}


def test_a_call_with_an_unstorable_result_is_still_recorded_as_done(ledger: Ledger) -> None:
    bank = Bank(object())
    harness = ToolHarness(ledger, bank.refund())

    first, again = harness.call("refund", order_id="1"), harness.call("refund", order_id="1")

    assert (first.status, again.status) == (CallStatus.DONE, CallStatus.REPLAYED)
    assert "could not be stored" in first.detail
    assert len(bank.refunds) == 1


def test_a_result_that_looks_like_a_receipt_is_still_a_result(ledger: Ledger) -> None:
    odd = {"result": 1, "receipt": {"key": "x"}}
    harness = ToolHarness(ledger, Bank(odd).refund())

    assert harness.call("refund", order_id="1").result == harness.call("refund", order_id="1").result == odd
