"""pydantic-ai: an agent with a toolset, run by a model that calls the tool once."""

from __future__ import annotations

import functools
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.toolsets import FunctionToolset
from tests.integrations.behaviour.agent_process import RULE, Adapter, Shop, run_worker

from onceward import Ledger
from onceward.integrations.pydantic_ai import OnceToolset


class OnceAgent:
    def __init__(self, ledger: Ledger, shop: Shop) -> None:
        async def refund(order_id: str, amount: int, note: str = "") -> Any:  # noqa: ARG001
            """Give the money back."""
            return await shop.refund(order_id, amount)

        self.toolset = OnceToolset(FunctionToolset([refund]), ledger, {"refund": RULE})

    async def call(self, arguments: dict[str, Any], conversation: str, call_id: str) -> dict[str, Any]:
        def model(messages: list[ModelMessage], _info: AgentInfo) -> ModelResponse:
            if len(messages) > 1:
                return ModelResponse(parts=[TextPart("done")])
            return ModelResponse(parts=[ToolCallPart("refund", arguments, tool_call_id=call_id)])

        agent = Agent(FunctionModel(model), toolsets=[self.toolset])
        run = await agent.run("refund it", conversation_id=conversation)
        seen = next(part for one in run.all_messages() for part in one.parts if isinstance(part, ToolReturnPart))
        assert seen.tool_call_id == call_id
        envelope: dict[str, Any] = seen.model_response_object()
        return envelope


_ADAPTERS: dict[str, type[Adapter]] = {"agent": OnceAgent}
main = functools.partial(run_worker, _ADAPTERS)
