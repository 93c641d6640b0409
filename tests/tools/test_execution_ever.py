"""Tools with once="ever": one effect for each business key, and an entry that never expires."""

from __future__ import annotations

from tests.tools.tool_harness import Bank, ToolHarness

from onceward import Ledger
from onceward.core.verdict import committed
from onceward.testing import PinnedClock
from onceward.tools.tool import tool

YEAR_SECONDS = 365 * 24 * 3600.0


def test_another_group_gets_the_result_of_the_first(ledger: Ledger) -> None:
    bank = Bank()
    tools = ToolHarness(ledger, bank.refund(once="ever"))

    found = [tools.call_as("refund", {"order_id": "1"}, turn_group_id=one) for one in ("a", "b")]

    assert [one.status for one in found] == ["done", "replayed"]
    assert found[0].result == found[1].result
    assert len(bank.refunds) == 1


def test_the_entry_outlives_its_result(ledger: Ledger, clock: PinnedClock) -> None:
    bank = Bank()
    tools = ToolHarness(ledger, bank.refund(once="ever", idempotent_for=60))
    tools.call("refund", order_id="1")
    clock.advance(YEAR_SECONDS)
    ledger.blocking.purge()

    again = tools.call("refund", order_id="1")

    assert (again.status, again.result, again.code) == ("replayed", None, "outcome-not-kept")
    assert len(bank.refunds) == 1


def test_other_arguments_are_refused_years_later(ledger: Ledger, clock: PinnedClock) -> None:
    bank = Bank()
    tools = ToolHarness(ledger, bank.refund(once="ever", idempotent_for=60))
    tools.call("refund", order_id="1", amount=5)
    clock.advance(YEAR_SECONDS)

    assert tools.call("refund", order_id="1", amount=6).code == "key-reused"
    assert len(bank.refunds) == 1


def test_an_undone_call_stays_undone(ledger: Ledger, clock: PinnedClock) -> None:
    undone: list[object] = []
    bank = Bank()
    tools = ToolHarness(
        ledger, bank.refund(once="ever", effect="compensatable", undo=lambda order_id: undone.append([order_id]))
    )
    tools.call("refund", order_id="1")
    tools.undo("refund", order_id="1")
    clock.advance(YEAR_SECONDS)
    ledger.blocking.purge()

    assert tools.call("refund", order_id="1").status == "done"
    assert (len(bank.refunds), undone) == (2, [["1"]])


def test_a_doubt_that_a_reconcile_hook_resolves_never_expires(ledger: Ledger, clock: PinnedClock) -> None:
    calls: list[str] = []

    @tool(effect="irreversible", key_fields=["order_id"], once="ever", reconcile=lambda: committed("found"))
    def pay(order_id: str) -> None:
        calls.append(order_id)
        raise OSError("connection lost")

    tools = ToolHarness(ledger, pay)
    assert tools.call("pay", order_id="1").result == "found"
    clock.advance(YEAR_SECONDS)
    ledger.blocking.purge()

    assert tools.call("pay", order_id="1").status == "replayed"
    assert calls == ["1"]
