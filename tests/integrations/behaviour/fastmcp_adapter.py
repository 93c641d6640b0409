"""The middleware of a FastMCP server whose tool does not know Onceward."""

from __future__ import annotations

import functools
import json
from typing import Any

from fastmcp import Client, FastMCP
from tests.integrations.behaviour.agent_process import RULE, Shop, run_worker

from onceward import Ledger
from onceward.integrations.fastmcp import OnceMiddleware


class MiddlewareAdapter:
    def __init__(self, ledger: Ledger, shop: Shop) -> None:
        self.server: FastMCP[Any] = FastMCP("shop", middleware=[OnceMiddleware(ledger, {"refund": RULE})])

        @self.server.tool(output_schema=None)
        async def refund(order_id: str, amount: int, note: str = "") -> str:  # noqa: ARG001
            return json.dumps(await shop.refund(order_id, amount))

    async def call(self, arguments: dict[str, Any], conversation: str, call_id: str) -> dict[str, Any]:  # noqa: ARG002
        async with Client(self.server) as client:
            meta = {"turn_group_id": conversation}
            result = await client.call_tool_mcp("refund", arguments, meta=meta)
        envelope: dict[str, Any] = (result.meta or {})["onceward"]
        texts = [one.text for one in result.content]
        own = [text for text in texts if '"may_retry"' not in text]
        shown = json.loads(own[0]) if own and envelope["status"] in {"done", "replayed"} else None
        return {**envelope, "result": shown}


main = functools.partial(run_worker, {"middleware": MiddlewareAdapter})
