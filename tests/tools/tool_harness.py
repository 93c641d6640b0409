"""A toolbox on a ledger, with the ways to call it that the tests share."""

# ruff: noqa: ARG001  # Tools have arguments because their calls differ by them.

from __future__ import annotations

import asyncio
from typing import Any

from onceward import Ledger
from onceward.tools.call import Call, Gate
from onceward.tools.envelope import Envelope
from onceward.tools.tool import Tool, tool
from onceward.tools.toolbox import Toolbox

GROUP = "group-1"


class ToolHarness:
    """Calls tools for one customer; `whose` names another group, tenant or principal."""

    def __init__(self, ledger: Ledger, *tools: Tool, gate: Gate | None = None) -> None:
        self.ledger = ledger
        self.toolbox = Toolbox(tools)
        self.gate = gate

    async def call_async(self, name: str, arguments: dict[str, Any], **whose: Any) -> Envelope:
        settings: dict[str, Any] = {"turn_group_id": GROUP, "tenant_id": "acme", "principal": "alice", **whose}
        return await self.toolbox.call(name, arguments, ledger=self.ledger, gate=self.gate, **settings)

    def call(self, name: str, /, **arguments: Any) -> Envelope:
        return asyncio.run(self.call_async(name, arguments))

    def call_as(self, name: str, arguments: dict[str, Any], **whose: Any) -> Envelope:
        return asyncio.run(self.call_async(name, arguments, **whose))

    def undo(
        self, name: str, /, generation: int | None = None, wait_seconds: float | None = None, **arguments: Any
    ) -> Envelope:
        return asyncio.run(
            self.toolbox.undo(
                name,
                arguments,
                ledger=self.ledger,
                generation=generation,
                wait_seconds=wait_seconds,
                turn_group_id=GROUP,
                tenant_id="acme",
                principal="alice",
            )
        )

    def check(self, name: str, /, **arguments: Any) -> Envelope:
        return asyncio.run(
            self.toolbox.check(
                name, arguments, ledger=self.ledger, turn_group_id=GROUP, tenant_id="acme", principal="alice"
            )
        )

    def plan(self, name: str, /, **arguments: Any) -> Call:
        return self.toolbox.plan(name, arguments, turn_group_id=GROUP, tenant_id="acme", principal="alice")


class Bank:
    """The outside world: it records every refund that really happened."""

    def __init__(self, *results: object) -> None:
        self.refunds: list[dict[str, Any]] = []
        self.results = list(results)

    def refund(self, **options: Any) -> Tool:
        options = {"effect": "irreversible", "template": "order:{order_id}", **options}

        @tool(name="refund", **options)
        def refund(order_id: Any, amount: int = 0, trace: Any = None, when: Any = None, meta: Any = None) -> object:
            self.refunds.append({"order_id": order_id, "amount": amount})
            return self.results.pop(0) if self.results else {"refund": len(self.refunds)}

        return refund


class CountingGate:
    """A gate that records its calls. It refuses everything with `refusal`, if it has one."""

    def __init__(self, refusal: BaseException | None = None) -> None:
        self.refusal = refusal
        self.fired: list[Call] = []
        self.ended: list[Envelope] = []

    async def fire(self, call: Call) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.fired.append(call)

    async def done(self, _call: Call, envelope: Envelope) -> None:
        self.ended.append(envelope)
