"""An MCP server that knows nothing of Onceward, behind a proxy that gives each of its calls one effect.

python examples/mcp_proxy            run a client, the proxy and the server, and print the results
python examples/mcp_proxy --serve    run the server alone on stdio
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from mcp import Client, StdioServerParameters
from mcp.server import MCPServer

BANK = Path("mcp-proxy-bank.txt")
CONFIG = Path("shop.toml")

RULES = """
ledger = "sqlite:///calls.db"

[tools.refund]
effect = "irreversible"
key_fields = ["order_id"]
how_to_check = "Look into the bank's list of refunds."
"""

server = MCPServer("shop")


@server.tool()
def refund(order_id: str, amount: int) -> dict[str, object]:
    """Pay an order back."""
    with BANK.open("a") as bank:
        bank.write(f"{order_id} {amount}\n")
    return {"order": order_id, "paid_back": amount}


@server.tool()
def close_shop() -> str:
    """Close the shop."""
    return "closed"


async def call(client: Client, tool: str, **arguments: object) -> str:
    result = await client.call_tool(tool, arguments)
    envelope = (result.meta or {})["onceward"]
    return f"{envelope['status']} {result.structured_content or envelope['code']}"


async def play() -> None:
    wrap = ["-m", "onceward", "mcp", "wrap", "--config", str(CONFIG), "--", sys.executable, __file__, "--serve"]
    proxy = StdioServerParameters(command=sys.executable, args=wrap, env=dict(os.environ))
    async with Client(proxy) as client:
        print("first:       ", await call(client, "refund", order_id="42", amount=10))
        print("again:       ", await call(client, "refund", order_id="42", amount=10))
        print("other amount:", await call(client, "refund", order_id="42", amount=99))
        print("not listed:  ", await call(client, "close_shop"))
    async with Client(proxy) as client:
        print("new server:  ", await call(client, "refund", order_id="42", amount=10))


if __name__ == "__main__":
    if "--serve" in sys.argv:
        server.run("stdio")
    else:
        CONFIG.write_text(RULES)
        asyncio.run(play())
        print("refunds:     ", len(BANK.read_text().splitlines()))
