"""`once_tool` under the decorators of real frameworks, and the parameters that they fill in."""

# ruff: noqa: ARG001  # Tools have arguments because their calls differ by them.

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import pytest
from agents import RunContextWrapper, function_tool
from agents.tool_context import ToolContext
from langchain.tools import ToolRuntime
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import InjectedToolCallId
from langchain_core.tools import tool as langchain_tool
from langgraph.errors import GraphInterrupt
from langgraph.prebuilt import InjectedState
from mcp import Client
from mcp.server.mcpserver import Context, MCPServer
from pydantic_ai import Agent, ApprovalRequired, RunContext
from pydantic_ai.models.test import TestModel

from onceward import Ledger, errors
from onceward.tools import once_tool
from onceward.tools.once_tool import _context_of

if TYPE_CHECKING:
    from pydantic_ai import RunContext as Hidden


class Bank:
    def __init__(self, ledger: Ledger) -> None:
        self.refunds: list[str] = []
        self.once = once_tool(ledger, effect="irreversible", key_fields=["order_id"], scope="chat-1")


@pytest.fixture
def bank(ledger: Ledger) -> Bank:
    return Bank(ledger)


def test_langchain_passes_its_config_and_call_id(bank: Bank) -> None:
    @langchain_tool
    @bank.once
    def refund(order_id: str, config: RunnableConfig, call: Annotated[str, InjectedToolCallId]) -> str:
        """Give the money back."""
        bank.refunds.append(call)
        return order_id

    found = [
        json.loads(refund.invoke({"name": "refund", "args": {"order_id": "1"}, "id": one, "type": "tool_call"}).content)
        for one in ("call-1", "call-2")
    ]

    assert [one["status"] for one in found] == ["done", "replayed"]
    assert bank.refunds == ["call-1"]
    assert refund.get_input_jsonschema()["required"] == ["order_id", "call"]


def test_pydantic_ai_passes_its_context(bank: Bank) -> None:
    @bank.once
    async def refund(ctx: RunContext[None], order_id: str) -> str:
        """Give the money back."""
        await asyncio.sleep(0)
        bank.refunds.append(ctx.tool_name or "")
        return order_id

    agent = Agent(TestModel(), tools=[refund])

    found = [json.loads(asyncio.run(agent.run("refund it")).output)["refund"]["status"] for _ in range(2)]

    assert found == ["done", "replayed"]
    assert bank.refunds == ["refund"]


def test_openai_agents_pass_their_context(bank: Bank) -> None:
    @function_tool
    @bank.once
    def refund(ctx: RunContextWrapper[None], order_id: str) -> str:
        """Give the money back."""
        bank.refunds.append(type(ctx).__name__)
        return order_id

    async def call(call_id: str) -> Any:
        text = json.dumps({"order_id": "1"})
        context = ToolContext(None, tool_name="refund", tool_call_id=call_id, tool_arguments=text)
        return await refund.on_invoke_tool(context, text)

    found = [asyncio.run(call(one))["status"] for one in ("call-1", "call-2")]

    assert found == ["done", "replayed"]
    assert bank.refunds == ["ToolContext"]
    assert refund.params_json_schema["required"] == ["order_id"]


def test_mcp_passes_its_context_and_validates_the_envelope(bank: Bank) -> None:
    server = MCPServer("shop")

    @server.tool()
    @bank.once
    async def refund(order_id: str, ctx: Context) -> str:
        """Give the money back."""
        await asyncio.sleep(0)
        bank.refunds.append(type(ctx).__name__)
        return order_id

    async def calls() -> list[Any]:
        async with Client(server) as client:
            return [(await client.call_tool("refund", {"order_id": "1"})).structured_content for _ in range(2)]

    assert [one["status"] for one in asyncio.run(calls())] == ["done", "replayed"]
    assert bank.refunds == ["Context"]


def given(
    ctx: RunContextWrapper[Any],
    run: RunContext[int] | None,
    state: Annotated[dict[str, Any], InjectedState],
    call: Annotated[str, InjectedToolCallId()],
    runtime: ToolRuntime,
    config: RunnableConfig,
    request: Context,
    order_id: str,
    amounts: list[int],
) -> None: ...


def test_parameters_of_frameworks_are_found_by_their_annotation() -> None:
    assert _context_of(given, (), set()) == {"ctx", "run", "state", "call", "runtime", "config", "request"}


def test_an_annotation_that_cannot_be_evaluated_must_be_named(bank: Bank) -> None:
    def refund(ctx: Hidden[None], order_id: str) -> None: ...

    refund.__annotations__["ctx"] = "missing.RunContext[None]"

    with pytest.raises(errors.InvalidOption, match=r"annotation of 'ctx' .* name it in context=\['ctx'\]"):
        bank.once(refund)
    assert _context_of(refund, ["ctx"], set()) == {"ctx"}


@pytest.mark.parametrize("interrupt", [GraphInterrupt, ApprovalRequired])
@pytest.mark.parametrize("way", ["sync", "async"])
def test_an_interrupt_before_the_effect_reaches_the_framework_and_leaves_no_doubt(
    bank: Bank, interrupt: type[Exception], way: str
) -> None:
    approved: list[bool] = []

    def decide(order_id: str) -> str:
        if not approved:
            raise interrupt
        bank.refunds.append(order_id)
        return order_id

    async def decide_async(order_id: str) -> str:
        await asyncio.sleep(0)
        return decide(order_id)

    once_async = bank.once(decide_async)

    async def call(order_id: str) -> Any:
        return await once_async(order_id)

    refund: Callable[[str], Any] = bank.once(decide) if way == "sync" else lambda order_id: asyncio.run(call(order_id))
    with pytest.raises(interrupt):
        refund("1")
    approved.append(True)

    assert [refund("1")["status"], refund("1")["status"]] == ["done", "replayed"]
    assert bank.refunds == ["1"]
