"""Failed calls: which may be repeated, and how reconcile and check find out."""

# ruff: noqa: ARG001  # Tools have arguments because their calls differ by them.

from __future__ import annotations

from typing import Any

import pytest
from tests.tools.conftest import LEASE_SECONDS
from tests.tools.tool_harness import CountingGate, ToolHarness

from onceward import Ledger, errors
from onceward.core.claim import Claim, Entry, Status
from onceward.core.verdict import Final, Verdict, committed, not_committed, pending, unknown
from onceward.ledger.terms import EffectClass
from onceward.testing import PinnedClock
from onceward.tools.call import Call
from onceward.tools.envelope import CallStatus
from onceward.tools.tool import Tool, tool


class Provider:
    """Raises the given exceptions, one for each call, and then works."""

    def __init__(self, *failures: BaseException) -> None:
        self.failures = list(failures)
        self.calls = 0

    def refund(self, effect: EffectClass = "irreversible", **options: Any) -> Tool:
        @tool(effect=effect, key_fields=["order_id"], **options)
        def refund(order_id: str, amount: int = 0) -> dict[str, int]:
            self.calls += 1
            if self.failures:
                raise self.failures.pop(0)
            return {"refund": self.calls}

        return refund


def entry_of(harness: ToolHarness, **arguments: Any) -> Entry:
    call = harness.plan("refund", **arguments)
    entry = harness.ledger.blocking.read(call.scope, call.key)
    assert entry is not None
    return entry


def abandon(harness: ToolHarness, clock: PinnedClock, **arguments: Any) -> Call:
    """Claim the key of a call and do not renew it, like a process that was killed."""
    call = harness.plan("refund", **arguments)
    claim = harness.ledger.blocking.begin(call.scope, call.key, call.fingerprint, repeatable=not call.irreversible)
    assert isinstance(claim, Claim)
    clock.advance(LEASE_SECONDS + 1)
    return call


@pytest.mark.parametrize("backend", ["memory", "sqlite", "postgres"], indirect=True)
def test_an_exception_of_an_irreversible_tool_is_unknown_and_never_repeated(ledger: Ledger) -> None:
    provider = Provider(TimeoutError("no answer"))
    harness = ToolHarness(ledger, provider.refund(how_to_check="Look at the order's page."))

    first, again = harness.call("refund", order_id="1"), harness.call("refund", order_id="1")

    assert (first.status, first.may_retry) == (again.status, again.may_retry) == (CallStatus.UNKNOWN, False)
    assert "no answer" in first.detail
    assert first.how_to_check is not None
    assert first.how_to_check.startswith("Look at the order's page.")
    assert provider.calls == 1
    assert entry_of(harness, order_id="1").status is Status.IN_DOUBT


@pytest.mark.parametrize("error", [errors.NotDone("too much"), PermissionError("no")], ids=["NotDone", "declared"])
def test_an_exception_that_proves_that_nothing_happened_may_be_retried(ledger: Ledger, error: Exception) -> None:
    provider = Provider(error)
    harness = ToolHarness(ledger, provider.refund(not_done=(PermissionError,)))

    first, again = harness.call("refund", order_id="1"), harness.call("refund", order_id="1")

    assert (first.status, first.may_retry) == (CallStatus.REFUSED, True)
    assert str(error) in first.detail
    assert (again.status, provider.calls) == (CallStatus.DONE, 2)


def test_a_call_that_certainly_did_nothing_may_be_corrected(ledger: Ledger) -> None:
    harness = ToolHarness(ledger, Provider(errors.NotDone("too much")).refund())
    harness.call("refund", order_id="1", amount=500)

    assert harness.call("refund", order_id="1", amount=5).status is CallStatus.DONE


def test_an_exception_of_an_idempotent_tool_may_be_retried_with_the_same_arguments(ledger: Ledger) -> None:
    provider = Provider(TimeoutError("no answer"))
    harness = ToolHarness(ledger, provider.refund("idempotent"))

    first = harness.call("refund", order_id="1", amount=5)
    assert entry_of(harness, order_id="1", amount=5).status is Status.FAILED
    other = harness.call("refund", order_id="1", amount=6)
    again = harness.call("refund", order_id="1", amount=5)

    assert (first.status, first.may_retry) == (CallStatus.UNKNOWN, True)
    assert other.status is CallStatus.REFUSED
    assert (again.status, provider.calls) == (CallStatus.DONE, 2)


def test_doubt_from_an_earlier_attempt_is_kept_after_an_attempt_that_did_nothing(ledger: Ledger) -> None:
    harness = ToolHarness(ledger, Provider(TimeoutError(), errors.NotDone("busy")).refund("idempotent"))
    assert harness.call("refund", order_id="1", amount=5).status is CallStatus.UNKNOWN
    assert harness.call("refund", order_id="1", amount=5).status is CallStatus.REFUSED

    assert harness.call("refund", order_id="1", amount=6).status is CallStatus.REFUSED
    assert harness.call("refund", order_id="1", amount=5).status is CallStatus.DONE


def test_onceward_exceptions_raised_by_a_tool_are_its_own(ledger: Ledger) -> None:
    harness = ToolHarness(ledger, Provider(errors.Busy("the tool's own ledger is busy")).refund())

    envelope = harness.call("refund", order_id="1")

    assert (envelope.status, envelope.may_retry) == (CallStatus.UNKNOWN, False)
    assert entry_of(harness, order_id="1").status is Status.IN_DOUBT


def test_stop_iteration_in_a_thread_is_an_exception_like_any_other(ledger: Ledger) -> None:
    assert (
        ToolHarness(ledger, Provider(StopIteration()).refund()).call("refund", order_id="1").status
        is CallStatus.UNKNOWN
    )


def test_a_holder_that_vanished_leaves_an_irreversible_call_unknown(ledger: Ledger, clock: PinnedClock) -> None:
    provider = Provider()
    harness = ToolHarness(ledger, provider.refund())
    abandon(harness, clock, order_id="1")

    envelope = harness.call("refund", order_id="1")

    assert (envelope.status, envelope.may_retry, provider.calls) == (CallStatus.UNKNOWN, False, 0)


def test_an_idempotent_call_whose_holder_vanished_runs_again(ledger: Ledger, clock: PinnedClock) -> None:
    provider = Provider()
    harness = ToolHarness(ledger, provider.refund("idempotent"))
    abandon(harness, clock, order_id="1")

    assert harness.call("refund", order_id="1").status is CallStatus.DONE
    assert provider.calls == 1


# Reconciling.


def verdict_of(answers: list[Verdict]) -> Any:
    def reconcile(order_id: str, entry: Entry, call: Call) -> Verdict:
        assert (order_id, call.arguments["order_id"]) == ("1", "1")
        assert entry.status is Status.IN_DOUBT
        return answers.pop(0)

    return reconcile


@pytest.mark.parametrize("backend", ["memory", "sqlite", "postgres"], indirect=True)
def test_a_result_found_at_the_provider_is_the_result_for_every_caller(ledger: Ledger, clock: PinnedClock) -> None:
    provider = Provider()
    harness = ToolHarness(ledger, provider.refund(reconcile=verdict_of([committed({"refund": 77})])))
    abandon(harness, clock, order_id="1")

    first, again = harness.call("refund", order_id="1"), harness.call("refund", order_id="1")

    assert (first.status, first.result) == (CallStatus.REPLAYED, {"refund": 77})
    assert (again.status, again.result, again.receipt) == (CallStatus.REPLAYED, {"refund": 77}, first.receipt)
    assert first.receipt is not None
    assert first.receipt["reconciled"] is True
    assert provider.calls == 0


def test_a_call_that_the_provider_never_received_runs_now(ledger: Ledger, clock: PinnedClock) -> None:
    provider = Provider()
    harness = ToolHarness(ledger, provider.refund(reconcile=verdict_of([not_committed(Final.PROVIDER_FINAL)])))
    abandon(harness, clock, order_id="1")

    assert harness.call("refund", order_id="1").status is CallStatus.DONE
    assert provider.calls == 1


@pytest.mark.parametrize("answer", [pending, unknown], ids=["pending", "unknown"])
def test_an_inconclusive_verdict_leaves_the_call_unknown(ledger: Ledger, clock: PinnedClock, answer: Verdict) -> None:
    provider = Provider()
    harness = ToolHarness(ledger, provider.refund(reconcile=lambda _: answer, wait_seconds=0))
    abandon(harness, clock, order_id="1")

    envelope = harness.call("refund", order_id="1")

    assert (envelope.status, envelope.may_retry, provider.calls) == (CallStatus.UNKNOWN, False, 0)
    assert envelope.how_to_check is not None
    assert "again" in envelope.how_to_check


def test_reconcile_runs_as_soon_as_a_call_fails(ledger: Ledger) -> None:
    gate = CountingGate()
    provider = Provider(TimeoutError("no answer"))
    harness = ToolHarness(ledger, provider.refund(reconcile=verdict_of([committed({"refund": 77})])), gate=gate)

    envelope = harness.call("refund", order_id="1")

    assert (envelope.status, envelope.result) == (CallStatus.REPLAYED, {"refund": 77})
    assert provider.calls == 1
    assert gate.ended == [envelope]


def test_a_failed_call_is_not_repeated_within_the_same_call(ledger: Ledger) -> None:
    provider = Provider(TimeoutError("no answer"))
    harness = ToolHarness(ledger, provider.refund(reconcile=verdict_of([not_committed(Final.PROVIDER_FINAL)])))

    envelope = harness.call("refund", order_id="1", amount=5)

    assert (envelope.status, envelope.may_retry, provider.calls) == (CallStatus.REFUSED, True, 1)
    assert harness.call("refund", order_id="1", amount=6).status is CallStatus.DONE


def test_a_failing_reconcile_changes_nothing(ledger: Ledger) -> None:
    def reconcile(entry: Entry) -> Verdict:
        raise ConnectionError(f"cannot ask about attempt {entry.attempt}")

    harness = ToolHarness(ledger, Provider(TimeoutError()).refund(reconcile=reconcile))

    envelope = harness.call("refund", order_id="1")

    assert (envelope.status, envelope.may_retry) == (CallStatus.UNKNOWN, False)
    assert "cannot ask about attempt 1" in envelope.detail
    assert entry_of(harness, order_id="1").status is Status.IN_DOUBT


def test_reconcile_can_use_the_key_given_to_the_provider(ledger: Ledger) -> None:
    handed: list[str] = []
    asked: list[str] = []

    def reconcile(key: str) -> Verdict:
        asked.append(key)
        return committed("found")

    @tool(effect="irreversible", provider_key="key", reconcile=reconcile)
    def refund(order_id: str, key: str) -> None:
        handed.append(key)
        raise TimeoutError

    assert ToolHarness(ledger, refund).call("refund", order_id="1").result == "found"
    assert handed == asked


@pytest.mark.parametrize("word", [{"refund": 9}, {"result": 1, "receipt": {"key": "x"}}, None], ids=str)
def test_the_verdict_of_an_operator_is_the_result(ledger: Ledger, word: object) -> None:
    harness = ToolHarness(ledger, Provider(TimeoutError()).refund())
    harness.call("refund", order_id="1")
    call, entry = harness.plan("refund", order_id="1"), entry_of(harness, order_id="1")

    assert ledger.blocking.resolve(call.scope, call.key, entry.version, committed(word), note="ann: seen")

    envelope = harness.call("refund", order_id="1")
    assert (envelope.status, envelope.result) == (CallStatus.REPLAYED, word)
    assert envelope.receipt == {"tool": "refund", "key": call.key, "resolved": True}


# Looking without running.


def test_check_runs_nothing(ledger: Ledger) -> None:
    provider = Provider(TimeoutError())
    harness = ToolHarness(ledger, provider.refund())

    before = harness.check("refund", order_id="1")
    doubtful = (harness.call("refund", order_id="1"), harness.check("refund", order_id="1"))
    done = (harness.call("refund", order_id="2"), harness.check("refund", order_id="2"))

    assert (before.status, before.may_retry) == (CallStatus.REFUSED, True)
    assert [one.status for one in doubtful] == [CallStatus.UNKNOWN, CallStatus.UNKNOWN]
    assert [one.status for one in done] == [CallStatus.DONE, CallStatus.REPLAYED]
    assert provider.calls == 2


def test_a_store_that_is_down_is_raised_and_not_returned_to_the_model(ledger: Ledger) -> None:
    harness = ToolHarness(ledger, Provider().refund())
    ledger.close()

    with pytest.raises(errors.StoreClosed):
        harness.call("refund", order_id="1")
