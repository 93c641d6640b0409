"""agent-once: its decorator below the decorator of a framework, which is the second argument, on its SQLite store.

Its store sets the file to WAL and leaves `synchronous` at FULL. Its key consists of all arguments and the scope, which the
integration takes from the framework's conversation.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any

from once import Once
from once.integrations import langchain, openai_agents, pydantic_ai

from bench.agents import frameworks
from bench.load import Effects, Load, with_tasks
from bench.peers.speak import Peer, serve


def make(url: str) -> Peer:
    effects = Effects()
    once = Once(url.removeprefix("sqlite:///"))
    # One loop for all calls: its locks belong to a loop.
    loop = asyncio.new_event_loop()
    call = _caller(sys.argv[2], once, effects)

    def drive(callers: int, seconds: float, name: Callable[[int, int], str]) -> Load:
        return loop.run_until_complete(with_tasks(call, callers, seconds, name))

    def close() -> None:
        loop.close()

    return Peer("agent-once", lambda key: loop.run_until_complete(_awaited(call, key)), drive, effects, close)


async def _awaited(call: frameworks.Caller, key: str) -> object:
    return await call(key)


def _caller(framework: str, once: Any, effects: Effects) -> frameworks.Caller:
    match framework:
        case "langchain":
            return _langchain(once, effects)
        case "pydantic_ai":
            return _pydantic_ai(once, effects)
        case "openai_agents":
            return _openai_agents(once, effects)

    @once.tool
    async def pay(order_id: str) -> dict[str, object]:  # noqa: ARG001  # part of the key
        return effects()

    async def call(order_id: str) -> object:
        with once.scope(frameworks.CONVERSATION):
            return await pay(order_id)

    return call


def _langchain(once: Any, effects: Effects) -> frameworks.Caller:
    from langchain_core.runnables import RunnableConfig  # noqa: PLC0415  # only the framework that is measured
    from langchain_core.tools import StructuredTool  # noqa: PLC0415

    async def pay(order_id: str, config: RunnableConfig) -> dict[str, object]:  # noqa: ARG001
        """Pay an order."""
        return effects()

    pay.__annotations__["config"] = RunnableConfig  # not a text: it is local to this function
    return frameworks.langchain(StructuredTool.from_function(coroutine=langchain.once_tool(once, pay)))


def _pydantic_ai(once: Any, effects: Effects) -> frameworks.Caller:
    from pydantic_ai import RunContext  # noqa: PLC0415
    from pydantic_ai.toolsets import FunctionToolset  # noqa: PLC0415

    async def pay(ctx: RunContext[Any], order_id: str) -> dict[str, object]:  # noqa: ARG001
        """Pay an order."""
        return effects()

    pay.__annotations__["ctx"] = RunContext[Any]
    return frameworks.pydantic_ai(FunctionToolset([pydantic_ai.once_tool(once, pay)]))


def _openai_agents(once: Any, effects: Effects) -> frameworks.Caller:
    from agents import function_tool  # noqa: PLC0415
    from agents.tool_context import ToolContext  # noqa: PLC0415

    async def pay(ctx: ToolContext[Any], order_id: str) -> dict[str, object]:  # noqa: ARG001
        """Pay an order."""
        return effects()

    pay.__annotations__["ctx"] = ToolContext[Any]
    return frameworks.openai_agents(function_tool(openai_agents.once_tool(once, pay)))


if __name__ == "__main__":
    serve(make)
