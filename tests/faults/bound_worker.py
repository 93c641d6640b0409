"""A worker that pays in a bound transaction and says where it is, on each kind of connection that `bind` accepts.

Run by the fork server, like `tests.faults.ledger_worker`: orders come as JSON lines, and reports go back.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys

from tests.connections import KINDS
from tests.faults.ledger_worker import Order, report, reporting

from onceward import current_claim, open_ledger

KINDS_BY_NAME = {kind.__name__: kind for kinds in KINDS.values() for kind in kinds}
POINTS = ("begun", "bound", "paid", "settled", "committed")


async def pay(order: Order) -> object:
    """Pay once for the key of the order. The row and the outcome name the process that had the effect."""

    def reach(point: str) -> None:
        report(at=point)
        if order.get("pause") == point:
            sys.stdin.readline()

    async def effect() -> None:
        async with KINDS_BY_NAME[order["kind"]](order["url"]) as transaction:
            reach("begun")
            bound = await transaction.bind(current_claim())
            reach("bound")
            await transaction.pay(f"{order['key']} {os.getpid()}")
            reach("paid")
            await transaction.settle(bound, os.getpid())
            reach("settled")
            await transaction.commit()
            reach("committed")

    async with open_ledger(order["url"], wait_seconds=30.0) as ledger:
        return await ledger.run(order["key"], effect, effect="idempotent")


def main(*_: str) -> None:
    report(at="ready")
    for line in sys.stdin:
        order: Order = json.loads(line)
        with reporting(order["key"]) as result:
            result["value"] = asyncio.run(pay(order))
