r"""Demo brain: a refund desk with three orders and a simulated bank.

    curl -H 'Content-Type: application/json' -H 'Prefer: wait=10' \
        -d '{"message": "Refund my order 12345"}' http://127.0.0.1:8787/chat

Its refund is irreversible. It happens once for each order and turn group, whatever is retried, restarted or superseded.
To use your own brain, run `onceward serve --brain module:name`.
"""

from __future__ import annotations

import re

from onceward.core.canonical import Json
from onceward.hub.turns.execution.brain import Brain
from onceward.hub.turns.execution.context import Context
from onceward.tools.tool import tool
from onceward.tools.toolbox import Toolbox

ORDERS: dict[str, dict[str, Json]] = {
    "12345": {"item": "a teapot", "amount": "49.90", "currency": "EUR"},
    "12346": {"item": "six cups", "amount": "32.00", "currency": "EUR"},
    "12347": {"item": "a tray", "amount": "18.50", "currency": "EUR"},
}
# Refunds of the simulated bank, by receipt.
paid: dict[str, dict[str, Json]] = {}

_ORDER = re.compile(r"\b([0-9]{5})\b")


@tool(effect="pure")
def find_order(order_id: str) -> dict[str, Json] | None:
    """Return the order, or None if it does not exist."""
    return ORDERS.get(order_id)


@tool(effect="irreversible", template="order:{order_id}")
def refund(order_id: str, amount: str, currency: str) -> dict[str, Json]:
    """Refund the price of an order."""
    receipt = f"rf_{len(paid) + 1:06d}"
    paid[receipt] = {"order_id": order_id, "amount": amount, "currency": currency}
    return {"receipt": receipt, **paid[receipt]}


async def answer(context: Context) -> str:
    """Ask for the order number, or refund the order."""
    await context.say("One moment, please. ")
    if "refund" not in context.text.lower():
        return "Hello! I refund orders. Try: refund my order 12345."
    found = _ORDER.findall(context.text)
    if not found:
        return "Which order should I refund? Please send its five-digit number."
    order_id = found[-1]
    order = (await context.call("find_order", order_id=order_id)).result
    if not isinstance(order, dict):
        return f"I do not know an order {order_id}. Try {', '.join(ORDERS)}."
    done = await context.call("refund", order_id=order_id, amount=order["amount"], currency=order["currency"])
    if not done.ok:
        return f"I cannot say whether order {order_id} was refunded: {done.detail}"
    return f"Order {order_id}, {order['item']}: {order['amount']} {order['currency']} has been refunded."


brain = Brain(answer, toolbox=Toolbox([find_order, refund]))
