"""One call of a tool through each framework, without a model. Imports neither Onceward nor its peers: both use it.

A call takes the way that the framework itself takes once a model has answered: its arguments are parsed and validated, and
the result becomes what the model would see.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

# A call of the tool with an order.
Caller: TypeAlias = Callable[[str], Awaitable[object]]
CONVERSATION = "bench"


def langchain(tool: Any, **wrappers: Any) -> Caller:
    """Return a call through a graph with a `ToolNode`."""
    from langchain_core.messages import AIMessage  # noqa: PLC0415  # only the framework that is measured
    from langgraph.graph import END, START, MessagesState, StateGraph  # noqa: PLC0415
    from langgraph.prebuilt import ToolNode  # noqa: PLC0415

    builder = StateGraph(MessagesState)
    builder.add_node("tools", ToolNode([tool], handle_tool_errors=False, **wrappers))
    builder.add_edge(START, "tools")
    builder.add_edge("tools", END)
    graph: Any = builder.compile()
    config = {"configurable": {"thread_id": CONVERSATION}}

    async def call(order_id: str) -> object:
        asked = {"name": "pay", "args": {"order_id": order_id}, "id": order_id, "type": "tool_call"}
        state = await graph.ainvoke({"messages": [AIMessage("", tool_calls=[asked])]}, config)
        return state["messages"][-1].content

    return call


def pydantic_ai(toolset: Any) -> Caller:
    """Return a call through a toolset."""
    from pydantic_ai import RunContext, RunUsage  # noqa: PLC0415
    from pydantic_ai.models.test import TestModel  # noqa: PLC0415

    context: Any = RunContext(deps=None, model=TestModel(), usage=RunUsage(), conversation_id=CONVERSATION)
    tools: dict[str, Any] = {}

    async def call(order_id: str) -> object:
        if not tools:
            tools.update(await toolset.get_tools(context))
        tool = tools["pay"]
        arguments = tool.args_validator.validate_json(json.dumps({"order_id": order_id}))
        return await toolset.call_tool("pay", arguments, context, tool)

    return call


def openai_agents(tool: Any) -> Caller:
    """Return a call of a `FunctionTool`."""
    from agents import RunConfig  # noqa: PLC0415
    from agents.tool_context import ToolContext  # noqa: PLC0415

    config = RunConfig(group_id=CONVERSATION)

    async def call(order_id: str) -> object:
        text = json.dumps({"order_id": order_id})
        context = ToolContext(None, tool_name="pay", tool_call_id=order_id, tool_arguments=text, run_config=config)
        return await tool.on_invoke_tool(context, text)

    return call
