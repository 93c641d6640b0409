"""`once_tool` on bare functions, without a framework."""

from __future__ import annotations

import asyncio
import functools
from typing import Any

from tests.integrations.behaviour.agent_process import RULE, Adapter, Shop, run_worker

from onceward import Ledger
from onceward.tools import once_tool


class AsyncOnceTool:
    def __init__(self, ledger: Ledger, shop: Shop) -> None:
        self.conversation = ""

        @once_tool(ledger, scope=lambda: self.conversation, **RULE)
        async def refund(order_id: str, amount: int, note: str = "") -> Any:  # noqa: ARG001
            return await shop.refund(order_id, amount)

        self.refund = refund

    async def call(self, arguments: dict[str, Any], conversation: str, call_id: str) -> dict[str, Any]:  # noqa: ARG002
        self.conversation = conversation
        envelope: dict[str, Any] = await self.refund(**arguments)
        return envelope


class SyncOnceTool:
    def __init__(self, ledger: Ledger, shop: Shop) -> None:
        self.conversation = ""

        @once_tool(ledger, scope=lambda: self.conversation, **RULE)
        def refund(order_id: str, amount: int, note: str = "") -> Any:  # noqa: ARG001
            return shop.refund_blocking(order_id, amount)

        self.refund = refund

    async def call(self, arguments: dict[str, Any], conversation: str, call_id: str) -> dict[str, Any]:  # noqa: ARG002
        self.conversation = conversation
        envelope: dict[str, Any] = await asyncio.to_thread(self.refund, **arguments)
        return envelope


_ADAPTERS: dict[str, type[Adapter]] = {"async": AsyncOnceTool, "sync": SyncOnceTool}
main = functools.partial(run_worker, _ADAPTERS)
