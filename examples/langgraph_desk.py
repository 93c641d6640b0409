"""A LangGraph agent as the brain of a hub: its customer interrupts it, and each order is refunded once.

python examples/langgraph_desk.py                       start a hub, talk to it, and print what happens
onceward serve --brain examples.langgraph_desk:brain    talk to it yourself, from the root of the repository
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from langchain.agents import create_agent
from langchain.tools import tool
from langchain_core.callbacks import AsyncCallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langgraph.checkpoint.memory import InMemorySaver

from onceward.hub.client import BlockingHub
from onceward.integrations.langchain import OnceToolMiddleware
from onceward.turns import Decision
from onceward.turns.brains.langgraph import graph_brain

# The folder of the bank. The script below also puts files there, and the model or the bank waits while they exist.
FOLDER = Path(os.environ.get("DESK_FOLDER", "."))
BANK = FOLDER / "bank.txt"


async def busy(name: str) -> None:
    while (FOLDER / f"{name}-is-busy").exists():  # noqa: ASYNC110  # another process removes it
        await asyncio.sleep(0.01)


# The agent: a tool, its rule, a model and a graph.


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


# The conversation: a customer who interrupts.


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[str]:
    """Start a hub with this brain. Yours already runs: `onceward serve --brain …`."""
    command = [sys.executable, "-m", "onceward", "serve", "--brain", "langgraph_desk:brain", "--port", "0"]
    command += ["--data-dir", str(folder / "data")]
    with subprocess.Popen(  # noqa: S603
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=Path(__file__).parent,  # the module of the brain is there
        env={**os.environ, "DESK_FOLDER": str(folder)},
    ) as hub:
        assert hub.stdout is not None  # noqa: S101
        line = hub.stdout.readline()  # onceward: listening on http://127.0.0.1:40211 (data in …)
        try:
            yield next(word for word in line.split() if word.startswith("http://"))
        finally:
            hub.terminate()


class Customer:
    """A customer of the desk, who prints what the hub does with each message."""

    def __init__(self, hub: BlockingHub, folder: Path) -> None:
        self.chat = hub.chat
        self.folder = folder
        self.turns: list[str] = []

    def says(self, text: str) -> str:
        turn_id = self.chat.say(text, session_key="a customer", wait_seconds=0).turn_id
        print(f"\ncustomer:  {text}")
        return turn_id

    def interrupts(self, running: str, text: str) -> str:
        """Say something while a turn runs, and print what the hub decides about it."""
        turn_id = self.says(text)
        if turn_id == running:
            print("hub:       absorbed; the running turn starts over with both messages")
        elif self.chat.turn(running).status == "superseded":
            print("hub:       the running turn is superseded; a new turn has both messages")
        else:
            print(f"hub:       queued in a turn of its own: {self.chat.turn(turn_id).reason}")
        return turn_id

    def gets_an_answer(self, turn_id: str) -> None:
        print("desk:     ", self.chat.finished(turn_id).response)
        self.sees_effects(turn_id)

    def sees_effects(self, turn_id: str) -> None:
        calls = [f"{one.tool} {one.arguments['order_id']}: {one.status}" for one in self.chat.turn(turn_id).tools]
        print("effects:  ", ", ".join(calls) or "none")

    def sees_the_model_think(self, turn_id: str) -> None:
        text = next(event.text for event in self.chat.follow(turn_id) if event.text)
        print("desk:     ", text.strip())

    def sees_the_bank_work(self) -> None:
        while not (self.folder / "bank-was-called").exists():
            time.sleep(0.01)
        print("bank:      a refund has begun")

    @contextlib.contextmanager
    def while_busy(self, name: str) -> Iterator[None]:
        (self.folder / "bank-was-called").unlink(missing_ok=True)
        (self.folder / f"{name}-is-busy").touch()
        yield
        (self.folder / f"{name}-is-busy").unlink()


def main() -> None:
    with TemporaryDirectory() as name, serving(Path(name)) as url, BlockingHub(url) as hub:
        customer = Customer(hub, Path(name))

        with customer.while_busy("model"):
            first = customer.says("Refund order 1234")
            customer.sees_the_model_think(first)
            second = customer.interrupts(first, "No wait, order 1243")
            customer.sees_effects(first)
        customer.gets_an_answer(second)

        with customer.while_busy("model"):
            first = customer.says("Refund order 1250")
            customer.sees_the_model_think(first)
            customer.interrupts(first, "And also order 1251")
        customer.gets_an_answer(first)

        with customer.while_busy("bank"):
            first = customer.says("Refund order 1260")
            customer.sees_the_bank_work()
            second = customer.interrupts(first, "Stop, not that one")
        customer.gets_an_answer(first)
        customer.gets_an_answer(second)

        print("\nrefunds:  ", ", ".join((Path(name) / "bank.txt").read_text().split()))


if __name__ == "__main__":
    main()
