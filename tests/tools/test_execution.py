"""From a call to its effect: the gate, the provider's key, and reports for an operator."""

# ruff: noqa: ARG001  # Tools have arguments because their calls differ by them.

from __future__ import annotations

from typing import Any

import pytest
from tests.tools.tool_harness import Bank, CountingGate, ToolHarness

from onceward import Ledger, errors
from onceward.core.claim import Status
from onceward.ledger.terms import EffectClass
from onceward.testing import PinnedClock
from onceward.tools.envelope import CallStatus, Envelope
from onceward.tools.tool import tool


@pytest.fixture
def bank() -> Bank:
    return Bank()


# The gate.


def test_the_gate_is_asked_before_the_effect_and_gets_its_outcome(ledger: Ledger) -> None:
    gate = CountingGate()
    seen: list[int] = []

    @tool(effect="idempotent")
    def act() -> None:
        seen.append(len(gate.fired))

    harness = ToolHarness(ledger, act, gate=gate)
    envelopes = [harness.call("act"), harness.call("act")]

    assert seen == [1]
    assert [call.key for call in gate.fired] == [envelopes[0].key]
    assert gate.ended == envelopes


@pytest.mark.parametrize("effect", ["idempotent", "compensatable", "irreversible"])
@pytest.mark.parametrize(
    "refusal",
    [errors.Superseded("over"), errors.StoreUnavailable("down"), KeyError("bug")],
    ids=lambda e: type(e).__name__,
)
def test_a_gate_that_refuses_runs_nothing_and_leaves_the_key_free(
    ledger: Ledger, bank: Bank, effect: EffectClass, refusal: Exception
) -> None:
    undo = {"undo": lambda: bank.refunds.append({"undone": True})} if effect == "compensatable" else {}
    refund = bank.refund(effect=effect, **undo)

    with pytest.raises(type(refusal)):
        ToolHarness(ledger, refund, gate=CountingGate(refusal)).call("refund", order_id="1", amount=5)

    assert bank.refunds == []
    corrected = ToolHarness(ledger, refund).call("refund", order_id="1", amount=6)
    assert corrected.status is CallStatus.DONE
    assert bank.refunds == [{"order_id": "1", "amount": 6}]


def test_superseded_is_an_error_that_says_that_nothing_happened() -> None:
    assert issubclass(errors.Superseded, errors.NotDone)
    assert not errors.Superseded.retryable


# The key for the provider.


def test_the_provider_gets_the_same_key_until_it_certainly_did_nothing(ledger: Ledger, clock: PinnedClock) -> None:
    handed: list[str] = []
    failures: list[Exception] = [TimeoutError("no answer"), errors.NotDone("busy")]

    @tool(effect="idempotent", key_fields=["order_id"], provider_key="idempotency_key")
    def refund(order_id: str, idempotency_key: str) -> None:
        handed.append(idempotency_key)
        if failures:
            raise failures.pop(0)

    harness = ToolHarness(ledger, refund)
    # The second attempt did nothing, but the first one used the same key and may have reached the provider.
    done = [harness.call("refund", order_id="1") for _ in range(3)][2]
    harness.call("refund", order_id="2")
    harness.call_as("refund", {"order_id": "1"}, principal="bob")
    harness.call_as("refund", {"order_id": "1"}, tenant_id="other")

    assert done.status is CallStatus.DONE
    assert handed[0] == handed[1] == handed[2]
    assert len(set(handed)) == 4
    assert all(len(key) == 36 and key.count("-") == 4 for key in handed)
    assert done.receipt is not None
    assert done.receipt["provider_key"] == handed[0]

    failures.append(errors.NotDone("busy"))
    clock.advance(1)
    harness.call("refund", order_id="3")
    clock.advance(1)
    harness.call("refund", order_id="3")
    assert handed[-1] != handed[-2]


def test_a_caller_cannot_choose_the_providers_key(ledger: Ledger) -> None:
    @tool(effect="irreversible", provider_key="idempotency_key")
    def refund(order_id: str, idempotency_key: str) -> None:
        raise AssertionError

    envelope = ToolHarness(ledger, refund).call("refund", order_id="1", idempotency_key="mine")

    assert envelope.status is CallStatus.REFUSED
    assert "idempotency_key" in envelope.detail


def test_the_providers_key_has_a_length_that_providers_accept(ledger: Ledger) -> None:
    handed: list[str] = []

    @tool(effect="idempotent", key_fields=["order_id"], provider_key="key")
    def refund(order_id: str, key: str) -> None:
        handed.append(key)

    harness = ToolHarness(ledger, refund)
    for order in ("x" * 300, "y" * 300, "ü"):
        assert harness.call("refund", order_id=order).status is CallStatus.DONE

    assert len(set(handed)) == 3
    assert all(len(key) <= 255 and key.isascii() for key in handed)


# Reports for an operator.


class Counts:
    def __init__(self) -> None:
        self.checks: list[tuple[str, bool, str]] = []
        self.doubts: list[str] = []

    def checked(self, _key: str, status: str, *, cached: bool, seconds: float, key_type: str) -> None:
        assert seconds >= 0
        self.checks.append((status, cached, key_type))

    def put_in_doubt(self, key: str) -> None:
        self.doubts.append(key)


def test_every_check_is_reported_in_the_words_of_the_metrics(ledger: Ledger, bank: Bank) -> None:
    counts = Counts()

    @tool(effect="irreversible")
    def fails() -> None:
        raise ConnectionError

    harness = ToolHarness(ledger, bank.refund(), fails)

    def call(name: str, **arguments: Any) -> Envelope:
        return harness.call_as(name, arguments, observer=counts)

    call("refund", order_id="1")
    call("refund", order_id="1")
    call("refund", order_id="1", amount=9)
    doubtful = call("fails")
    call("fails")

    assert counts.checks == [
        ("processing_started", False, "tool_based"),
        ("duplicate_completed", True, "tool_based"),
        ("fingerprint_mismatch", False, "tool_based"),
        ("processing_started", False, "tool_based"),
        ("in_doubt", False, "tool_based"),
    ]
    assert counts.doubts == [doubtful.key]


def test_a_refused_call_leaves_nothing_in_the_ledger(ledger: Ledger, bank: Bank) -> None:
    ToolHarness(ledger, bank.refund()).call("refund", order_id=None)

    assert ledger.blocking.scan(status=Status.FAILED).entries == ()
