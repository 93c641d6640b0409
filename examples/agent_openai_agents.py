"""An agent of the OpenAI Agents SDK whose model calls a tool twice, and pays back once.

python examples/agent_openai_agents.py    run the agent with a fake model, and print the results
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from agents import Agent, Model, ModelResponse, RunConfig, Runner, Usage
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

from onceward import open_ledger
from onceward.integrations.openai_agents import once_function_tool

BANK = Path("bank.txt")
PLAN = [
    {"order_id": "42", "amount": 10, "reason": "the customer asked"},
    {"order_id": "42", "amount": 10, "reason": "to be sure"},  # the same call, planned again
    {"order_id": "42", "amount": 99, "reason": "more"},  # another call with the same key
]


class FakeModel(Model):
    """Your model goes here. This one calls the tool as planned."""

    turn = 0

    async def get_response(self, *_args: Any, **_options: Any) -> ModelResponse:
        self.turn += 1
        output: Any
        if self.turn > len(PLAN):
            text = ResponseOutputText(text="Order 42 is refunded.", type="output_text", annotations=[])
            output = ResponseOutputMessage(
                id="message", content=[text], role="assistant", status="completed", type="message"
            )
        else:
            arguments = json.dumps(PLAN[self.turn - 1])
            output = ResponseFunctionToolCall(
                name="refund", arguments=arguments, call_id=f"call-{self.turn}", type="function_call"
            )
        return ModelResponse(output=[output], usage=Usage(), response_id=None)

    def stream_response(self, *_args: Any, **_options: Any) -> AsyncIterator[Any]:
        raise NotImplementedError


def main() -> None:
    with open_ledger("sqlite:///tools.db") as ledger:

        @once_function_tool(ledger, effect="irreversible", key_fields=["order_id"], volatile=["reason"])
        def refund(order_id: str, amount: int, reason: str = "") -> dict[str, object]:
            """Pay an order back."""
            with BANK.open("a") as bank:  # call the bank here
                bank.write(f"{order_id} {amount} {reason}\n")
            return {"order": order_id, "paid_back": amount}

        agent = Agent(name="shop", model=FakeModel(), tools=[refund])
        config = RunConfig(group_id="conversation-1", tracing_disabled=True)
        run = asyncio.run(Runner.run(agent, "Refund 42", run_config=config))
    for item in run.to_input_list():
        seen: Any = item
        if seen.get("type") == "function_call_output":
            envelope = json.loads(seen["output"])
            print(f"{seen['call_id']}: {envelope['status']} {envelope['result']} {envelope['code']}".rstrip())
    print("refunds:", len(BANK.read_text().splitlines()))


if __name__ == "__main__":
    main()
