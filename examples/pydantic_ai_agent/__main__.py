"""A pydantic-ai agent whose model calls a tool twice, and pays back once.

python examples/pydantic_ai_agent    run the agent with a fake model, and print the results
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from pydantic_ai import Agent, FunctionToolset, ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from onceward import open_ledger
from onceward.integrations.pydantic_ai import OnceToolset

BANK = Path("pydantic-ai-agent-bank.txt")


def refund(order_id: str, amount: int, reason: str = "") -> dict[str, object]:
    """Pay an order back."""
    with BANK.open("a") as bank:  # call the bank here
        bank.write(f"{order_id} {amount} {reason}\n")
    return {"order": order_id, "paid_back": amount}


RULES = {"refund": {"effect": "irreversible", "key_fields": ["order_id"], "volatile": ["reason"]}}
PLAN = [
    {"order_id": "42", "amount": 10, "reason": "the customer asked"},
    {"order_id": "42", "amount": 10, "reason": "to be sure"},  # the same call, planned again
    {"order_id": "42", "amount": 99, "reason": "more"},  # another call with the same key
]


def fake_model(messages: list[ModelMessage], _info: AgentInfo) -> ModelResponse:
    """Your model goes here. This one calls the tool as planned."""
    at = len(messages) // 2
    if at == len(PLAN):
        return ModelResponse(parts=[TextPart("Order 42 is refunded.")])
    return ModelResponse(parts=[ToolCallPart("refund", PLAN[at], tool_call_id=f"call-{at + 1}")])


def main() -> None:
    with open_ledger("sqlite:///pydantic-ai-agent.db") as ledger:
        tools = OnceToolset(FunctionToolset([refund]), ledger, RULES)
        agent = Agent(FunctionModel(fake_model), toolsets=[tools])
        run = asyncio.run(agent.run("Refund 42", conversation_id="conversation-1"))
    for message in run.all_messages():
        for part in message.parts:
            if isinstance(part, ToolReturnPart):
                envelope = part.model_response_object()
                print(f"{part.tool_call_id}: {envelope['status']} {envelope['result']} {envelope['code']}".rstrip())
    print("refunds:", len(BANK.read_text().splitlines()))


if __name__ == "__main__":
    main()
