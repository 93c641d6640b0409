"""The agent: a tool, its rule, a model and a graph, as the brain of a hub."""

from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path
from typing import Any

from langchain.agents import create_agent
from langchain.tools import tool
from langchain_core.callbacks import AsyncCallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langgraph.checkpoint.memory import InMemorySaver

from onceward.integrations.langchain import OnceToolMiddleware
from onceward.turns import Decision
from onceward.turns.brains.langgraph import graph_brain

# The folder of the bank. The script in `__main__.py` also puts files there, and the model or the bank waits while they exist.
FOLDER = Path(os.environ.get("DESK_FOLDER", "."))
BANK = FOLDER / "bank.txt"


async def busy(name: str) -> None:
    while (FOLDER / f"{name}-is-busy").exists():  # noqa: ASYNC110  # another process removes it
        await asyncio.sleep(0.01)


@tool
async def refund(order_id: str) -> str:
    """Refund an order."""
    (FOLDER / "bank-was-called").touch()
    await busy("bank")
    with BANK.open("a") as bank:  # call the bank here
        bank.write(f"{order_id}\n")
    return f"order {order_id} is refunded"


RULES = {"refund": {"effect": "irreversible", "key_fields": ["order_id"]}}


class FakeModel(BaseChatModel):
    """Your model goes here. This one refunds the orders that the customer names, and understands "no" and "stop"."""

    @property
    def _llm_type(self) -> str:
        return "fake"

    def bind_tools(self, tools: Any, **options: Any) -> Any:  # noqa: ARG002
        return self

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=plan(messages))])

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,  # noqa: ARG002
        run_manager: AsyncCallbackManagerForLLMRun | None = None,  # noqa: ARG002
        **_: Any,
    ) -> Any:
        if isinstance(messages[-1], HumanMessage):
            yield ChatGenerationChunk(message=AIMessageChunk(content="Let me see. "))
        await busy("model")
        found = plan(messages)
        yield ChatGenerationChunk(message=AIMessageChunk(content=found.content, tool_calls=found.tool_calls))


def plan(messages: list[BaseMessage]) -> AIMessage:
    asked: list[str] = []
    for message in messages:
        if isinstance(message, AIMessage) and not message.tool_calls:
            asked.clear()  # an earlier question, which is answered
        elif isinstance(message, HumanMessage):
            text = str(message.content).lower()
            if text.startswith(("no", "stop")):
                asked.clear()
            asked += re.findall("[0-9]{4}", text)
    if isinstance(messages[-1], ToolMessage):
        return AIMessage(f"Refunded: {', '.join(asked)}.")
    if not asked:
        return AIMessage("Nothing is left to refund.")
    calls = [{"name": "refund", "args": {"order_id": one}, "id": f"call-{one}", "type": "tool_call"} for one in asked]
    return AIMessage("", tool_calls=calls)


def decide(_turn: Any, _messages: Any, new: Any) -> Decision | None:
    """Decide about a message that interrupts the agent. None is the default decision."""
    return Decision.ABSORB if new.content.lower().startswith("and") else None


agent: Any = create_agent(
    FakeModel(), [refund], middleware=[OnceToolMiddleware(None, RULES)], checkpointer=InMemorySaver()
)
brain = graph_brain(agent, RULES, decide=decide)
