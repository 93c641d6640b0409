"""Tools over the Model Context Protocol that have one effect, however often they are called.

python examples/mcp_server            run a client and a server, and print the results
python examples/mcp_server --serve    run the server on stdio, for any client
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from mcp import Client, StdioServerParameters
from mcp.server import MCPServer

from onceward import open_ledger
from onceward.integrations.mcp import OnceTools
from onceward.tools import Toolbox, tool

BANK = Path("mcp-server-bank.txt")


@tool(effect="irreversible", template="order:{order_id}", how_to_check="Look into the bank's list of refunds.")
def refund(order_id: str, amount: int) -> dict[str, object]:
    """Pay an order back."""
    with BANK.open("a") as bank:  # call the bank here
        bank.write(f"{order_id} {amount}\n")
    return {"order": order_id, "paid_back": amount}


def serve() -> None:
    with open_ledger("sqlite:///mcp-server.db") as ledger:
        MCPServer("refunds", extensions=[OnceTools(Toolbox([refund]), ledger)]).run("stdio")


async def call(client: Client, amount: int, key: str | None = None) -> str:
    meta = None if key is None else {"idempotency_key": key}
    result = await client.call_tool("refund", {"order_id": "42", "amount": amount}, meta=meta)  # type: ignore[arg-type]  # an open map
    envelope = result.structured_content
    return f"{envelope['status']} {envelope['result']} {envelope['code']}".rstrip()


async def play() -> None:
    server = StdioServerParameters(command=sys.executable, args=[__file__, "--serve"])
    async with Client(server) as client:
        print("first:      ", await call(client, 10))
        print("again:      ", await call(client, 10))
        print("with a key: ", await call(client, 10, "refund-1"))
        print("its retry:  ", await call(client, 10, "refund-1"))
        print("other amount: ", await call(client, 99, "refund-1"))
    async with Client(server) as client:
        print("new server: ", await call(client, 10, "refund-1"))


if __name__ == "__main__":
    if "--serve" in sys.argv:
        serve()
    else:
        asyncio.run(play())
        print("refunds:    ", len(BANK.read_text().splitlines()))
