"""LangChain: the middleware of an agent, and the wrappers of a `ToolNode`."""

from __future__ import annotations

import asyncio
import functools
import json
from typing import Any, cast

from langchain.agents import create_agent
from langchain_core.language_models.fake_chat_models import FakeMessagesListChatModel
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import StructuredTool
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from tests.integrations.behaviour.agent_process import RULE, Adapter, Shop, run_worker

from onceward import Ledger
from onceward.integrations.langchain import OnceToolMiddleware, awrap_tool_call, wrap_tool_call

RULES: dict[str, Any] = {"refund": RULE}


class Model(FakeMessagesListChatModel):
    """A model that calls the tool once, and then ends."""

    def bind_tools(self, tools: Any, **options: Any) -> Any:  # noqa: ARG002
        return self


def refund_tool(shop: Shop) -> StructuredTool:
    async def refund(order_id: str, amount: int, note: str = "") -> Any:  # noqa: ARG001
        """Give the money back."""
        return await shop.refund(order_id, amount)

    def refund_blocking(order_id: str, amount: int, note: str = "") -> Any:  # noqa: ARG001
        """Give the money back."""
        return shop.refund_blocking(order_id, amount)

    return StructuredTool.from_function(refund_blocking, refund, name="refund")


def calls(arguments: dict[str, Any], call_id: str) -> AIMessage:
    return AIMessage("", tool_calls=[{"name": "refund", "args": arguments, "id": call_id, "type": "tool_call"}])


def seen(state: dict[str, Any], call_id: str) -> dict[str, Any]:
    """The envelope in the last message of the tool."""
    message = next(one for one in reversed(state["messages"]) if isinstance(one, ToolMessage))
    assert message.tool_call_id == call_id
    return cast("dict[str, Any]", json.loads(cast("str", message.content)))


class AsyncAgent:
    def __init__(self, ledger: Ledger, shop: Shop) -> None:
        self.tools = [refund_tool(shop)]
        self.middleware = [OnceToolMiddleware(ledger, RULES)]

    def agent(self, arguments: dict[str, Any], call_id: str) -> Any:
        model = Model(responses=[calls(arguments, call_id), AIMessage("done")])
        return create_agent(model, self.tools, middleware=self.middleware)

    async def call(self, arguments: dict[str, Any], conversation: str, call_id: str) -> dict[str, Any]:
        config = {"configurable": {"thread_id": conversation}}
        state = await self.agent(arguments, call_id).ainvoke({"messages": [("user", "refund it")]}, config)
        return seen(state, call_id)


class SyncAgent(AsyncAgent):
    async def call(self, arguments: dict[str, Any], conversation: str, call_id: str) -> dict[str, Any]:
        config = {"configurable": {"thread_id": conversation}}
        invoke = self.agent(arguments, call_id).invoke
        return seen(await asyncio.to_thread(invoke, {"messages": [("user", "refund it")]}, config), call_id)


class ToolNodeAdapter:
    def __init__(self, ledger: Ledger, shop: Shop) -> None:
        node = ToolNode(
            [refund_tool(shop)],
            wrap_tool_call=wrap_tool_call(ledger, RULES),
            awrap_tool_call=awrap_tool_call(ledger, RULES),
        )
        graph = StateGraph(MessagesState)
        graph.add_node("tools", node)
        graph.add_edge(START, "tools")
        graph.add_edge("tools", END)
        self.graph: Any = graph.compile()

    async def call(self, arguments: dict[str, Any], conversation: str, call_id: str) -> dict[str, Any]:
        config = {"configurable": {"thread_id": conversation}}
        return seen(await self.graph.ainvoke({"messages": [calls(arguments, call_id)]}, config), call_id)


_ADAPTERS: dict[str, type[Adapter]] = {"agent": AsyncAgent, "agent-sync": SyncAgent, "tool-node": ToolNodeAdapter}
main = functools.partial(run_worker, _ADAPTERS)
