"""Tools as plain functions, as frameworks inspect and call them."""

# ruff: noqa: ARG001  # Tools have arguments because their calls differ by them.

from __future__ import annotations

import asyncio
import inspect
from typing import Any, get_type_hints

from tests.tools.tool_harness import GROUP, ToolHarness

from onceward import Ledger
from onceward.tools.functions import Function
from onceward.tools.tool import Tool, tool
from onceward.turns.adapters.functions import functions


def refund_tool(done: list[str]) -> Tool:
    @tool(effect="irreversible", template="order:{order_id}", provider_key="key")
    def refund(order_id: str, amount: int = 0, *, key: str) -> dict[str, int]:
        """Give the money back."""
        done.append(order_id)
        return {"refund": len(done)}

    return refund


def made(ledger: Ledger, declared: Tool) -> Function:
    toolbox = ToolHarness(ledger, declared).toolbox
    return functions(toolbox, ledger, turn_group_id=GROUP, principal="alice", tenant_id="acme")[declared.name]


def run(function: Function, *args: Any, **named: Any) -> dict[str, Any]:
    async def it() -> dict[str, Any]:
        return await function(*args, **named)

    return asyncio.run(it())


def test_a_function_has_the_signature_of_its_tool_without_reserved_arguments(ledger: Ledger) -> None:
    refund = made(ledger, refund_tool([]))

    assert (refund.__name__, refund.__doc__) == ("refund", "Give the money back.")
    assert list(inspect.signature(refund).parameters) == ["order_id", "amount"]
    assert get_type_hints(refund) == {"order_id": str, "amount": int, "return": dict[str, Any]}
    assert inspect.iscoroutinefunction(refund)


def test_a_function_returns_the_envelope(ledger: Ledger) -> None:
    done: list[str] = []
    refund = made(ledger, refund_tool(done))

    first, again = run(refund, "1", amount=5), run(refund, order_id="1", amount=5)

    assert (first["status"], again["status"]) == ("done", "replayed")
    assert first["result"] == again["result"] == {"refund": 1}
    assert done == ["1"]


def test_a_function_and_the_toolbox_share_effects(ledger: Ledger) -> None:
    done: list[str] = []
    declared = refund_tool(done)
    ToolHarness(ledger, declared).call("refund", order_id="1")

    assert run(made(ledger, declared), order_id="1")["status"] == "replayed"
    assert done == ["1"]


def test_invalid_arguments_are_reported_to_the_model(ledger: Ledger) -> None:
    done: list[str] = []
    refund = made(ledger, refund_tool(done))

    assert [run(refund)["status"], run(refund, "1", wrong=1)["status"]] == ["refused", "refused"]
    assert done == []
