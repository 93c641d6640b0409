"""A shop over the Model Context Protocol, whose every effect is a line in a file. Run as a program, it serves on stdio.

python mcp_shop.py FOLDER
"""

# ruff: noqa: ARG001  # Tools have arguments because their calls differ by them.

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

from mcp.server import MCPServer, Server
from mcp.server.stdio import stdio_server

from onceward import Ledger, open_ledger
from onceward.integrations.mcp import OnceTools, mcp_server
from onceward.tools import Toolbox


def shop(folder: Path) -> Toolbox:
    toolbox = Toolbox()

    def write(line: str) -> int:
        with (folder / "effects").open("a") as file:
            file.write(f"{line}\n")
        return len(effects(folder))

    @toolbox.tool(effect="irreversible", template="order:{order_id}")
    async def refund(order_id: str, amount: int = 0) -> dict[str, Any]:
        """Give the money back."""
        return {"refund": write(f"refund {order_id}"), "pid": os.getpid()}

    @toolbox.tool(effect="irreversible", how_to_check="Look into the bank's list.")
    async def hang(order_id: str) -> None:
        """Begin, and never end."""
        write(f"hang {order_id} {os.getpid()}")
        await asyncio.Event().wait()

    @toolbox.tool(effect="pure")
    def price(order_id: str) -> int:
        return 49

    return toolbox


def effects(folder: Path) -> list[str]:
    file = folder / "effects"
    return file.read_text().splitlines() if file.exists() else []


def ledger_of(folder: Path) -> Ledger:
    return open_ledger(f"sqlite:///{folder}/ledger.db", wait_seconds=20)


def shop_server(folder: Path, ledger: Ledger, **options: Any) -> Server[Any]:
    return mcp_server(shop(folder), ledger, **options)


def shop_with_others(folder: Path, ledger: Ledger, **options: Any) -> MCPServer:
    """The same tools beside one of the server's own."""
    server = MCPServer("shop", extensions=[OnceTools(shop(folder), ledger, **options)])

    @server.tool()
    def greet(name: str) -> str:
        return f"Hello, {name}"

    return server


async def _serve(folder: Path) -> None:
    with ledger_of(folder) as ledger:
        server = shop_server(folder, ledger)
        async with stdio_server() as (read, write):
            await server.run(read, write, server.create_initialization_options())


if __name__ == "__main__":
    asyncio.run(_serve(Path(sys.argv[1])))
