"""OpenAI Agents: an agent with a function tool, run by a fake model that calls the tool once."""

from __future__ import annotations

import functools
import json
from typing import Any

from agents import Agent, RunConfig, Runner
from tests.integrations.behaviour.agent_process import RULE, Adapter, Shop, run_worker
from tests.integrations.openai_model import FakeModel, calls, says, tool_outputs

from onceward import Ledger
from onceward.integrations.openai_agents import once_function_tool


class AsyncTool:
    def __init__(self, ledger: Ledger, shop: Shop) -> None:
        @once_function_tool(ledger, **RULE)
        async def refund(order_id: str, amount: int, note: str = "") -> Any:  # noqa: ARG001
            """Give the money back."""
            return await shop.refund(order_id, amount)

        self.refund = refund

    async def call(self, arguments: dict[str, Any], conversation: str, call_id: str) -> dict[str, Any]:
        model = FakeModel(calls("refund", arguments, call_id), says("done"))
        agent = Agent("shop", model=model, tools=[self.refund])
        config = RunConfig(group_id=conversation, tracing_disabled=True)
        run = await Runner.run(agent, "refund it", run_config=config)
        envelope: dict[str, Any] = json.loads(tool_outputs(run)[call_id])
        return envelope


class SyncTool(AsyncTool):
    def __init__(self, ledger: Ledger, shop: Shop) -> None:
        @once_function_tool(ledger, **RULE)
        def refund(order_id: str, amount: int, note: str = "") -> Any:  # noqa: ARG001
            """Give the money back."""
            return shop.refund_blocking(order_id, amount)

        self.refund = refund


_ADAPTERS: dict[str, type[Adapter]] = {"async": AsyncTool, "sync": SyncTool}
main = functools.partial(run_worker, _ADAPTERS)
