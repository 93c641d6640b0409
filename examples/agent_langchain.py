"""A LangChain agent whose model calls a tool twice, and pays back once.

python examples/agent_langchain.py    run the agent with a fake model, and print the results
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from langchain.agents import create_agent
from langchain.tools import tool
from langchain_core.language_models.fake_chat_models import FakeMessagesListChatModel
from langchain_core.messages import AIMessage, ToolMessage

from onceward import open_ledger
from onceward.integrations.langchain import OnceToolMiddleware

BANK = Path("bank.txt")


@tool
def refund(order_id: str, amount: int, reason: str = "") -> dict[str, object]:
    """Pay an order back."""
    with BANK.open("a") as bank:  # call the bank here
        bank.write(f"{order_id} {amount} {reason}\n")
    return {"order": order_id, "paid_back": amount}


RULES = {"refund": {"effect": "irreversible", "key_fields": ["order_id"], "volatile": ["reason"]}}


class FakeModel(FakeMessagesListChatModel):
    """Your model goes here. This one says what it was given."""

    def bind_tools(self, tools: Any, **options: Any) -> Any:  # noqa: ARG002
        return self


def plan(call_id: str, amount: int, reason: str) -> AIMessage:
    arguments = {"order_id": "42", "amount": amount, "reason": reason}
    return AIMessage("", tool_calls=[{"name": "refund", "args": arguments, "id": call_id, "type": "tool_call"}])


def main() -> None:
    model = FakeModel(
        responses=[
            plan("call-1", 10, "the customer asked"),
            plan("call-2", 10, "to be sure"),  # the same call, planned again
            plan("call-3", 99, "more"),  # another call with the same key
            AIMessage("Order 42 is refunded."),
        ]
    )
    with open_ledger("sqlite:///tools.db") as ledger:
        agent: Any = create_agent(model, [refund], middleware=[OnceToolMiddleware(ledger, RULES)])
        state = agent.invoke({"messages": [("user", "Refund 42")]}, {"configurable": {"thread_id": "conversation-1"}})
    for message in state["messages"]:
        if isinstance(message, ToolMessage):
            envelope = json.loads(str(message.content))
            print(f"{message.tool_call_id}: {envelope['status']} {envelope['result']} {envelope['code']}".rstrip())
    print("refunds:", len(BANK.read_text().splitlines()))


if __name__ == "__main__":
    main()
