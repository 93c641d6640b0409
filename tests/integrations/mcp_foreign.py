"""An MCP server that knows nothing of Onceward, whose every effect is a line in a file. It serves on stdio.

python mcp_foreign.py FOLDER
"""

# ruff: noqa: ARG001  # Tools have arguments because their calls differ by them.

from __future__ import annotations

import asyncio
import base64
import os
import sys
from pathlib import Path

from mcp.server import MCPServer
from mcp.server.elicitation import AcceptedElicitation
from mcp.server.mcpserver import Context
from mcp.types import CallToolResult, ImageContent, TextContent
from pydantic import BaseModel

# The smallest picture of the format.
PIXEL = (
    b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00\x00\x01\x00\x00\x00\x01\x08\x06\x00\x00\x00\x1f\x15\xc4\x89"
    b"\x00\x00\x00\rIDATx\x9cc\xf8\xff\xff?\x00\x05\xfe\x02\xfe\xa75\x81\x84\x00\x00\x00\x00IEND\xaeB`\x82"
)


class Receipt(BaseModel):
    refund: int
    order_id: str


class Consent(BaseModel):
    sure: bool


def foreign_server(folder: Path) -> MCPServer:
    server = MCPServer("foreign", instructions="Knows nothing of Onceward.")

    def write(line: str) -> int:
        with (folder / "effects").open("a") as file:
            file.write(f"{line}\n")
        return len((folder / "effects").read_text().splitlines())

    async def wait_after(line: str) -> int:
        number = write(line)
        while not (folder / "open").exists():  # noqa: ASYNC110  # another process creates it
            await asyncio.sleep(0.01)
        return number

    @server.tool()
    async def refund(order_id: str, amount: int = 0) -> Receipt:
        """Give the money back."""
        return Receipt(refund=write(f"refund {order_id}"), order_id=order_id)

    @server.tool()
    async def gated(order_id: str) -> str:
        """Have the effect, and return when a file appears."""
        return f"gated {await wait_after(f'gated {order_id}')}"

    @server.tool()
    async def stop(order_id: str) -> str:
        """Have the effect, and end the server."""
        write(f"stop {order_id}")
        os._exit(7)

    @server.tool()
    async def put(order_id: str) -> str:
        """Have the effect, and return when a file appears. A repetition changes nothing."""
        return f"put {await wait_after(f'put {order_id}')}"

    @server.tool()
    async def ask(order_id: str, ctx: Context) -> str:
        """Ask the user before the effect."""
        found = await ctx.elicit("Sure?", Consent)
        write("ask")
        return f"sure: {found.data.sure if isinstance(found, AcceptedElicitation) else None}"

    @server.tool()
    async def picture(order_id: str) -> CallToolResult:
        write("picture")
        image = ImageContent(type="image", data=base64.b64encode(PIXEL).decode(), mime_type="image/png")
        return CallToolResult(content=[image, TextContent(type="text", text="a pixel")])

    @server.tool()
    async def large(order_id: str) -> CallToolResult:
        return CallToolResult(content=[TextContent(type="text", text="x" * (17 * 1024 * 1024) + str(write("large")))])

    @server.tool()
    async def steps(order_id: str, ctx: Context) -> str:
        await ctx.report_progress(1, 2)
        await ctx.report_progress(2, 2)
        return f"steps {write('steps')}"

    @server.tool()
    async def price(order_id: str) -> int:
        write("price")
        return 49

    @server.resource("shop://opening")
    def opening() -> str:
        return "9 to 5"

    @server.prompt()
    def greet(name: str) -> str:
        return f"Greet {name}"

    return server


if __name__ == "__main__":
    # For tests that kill the process that started this one.
    (Path(sys.argv[1]) / "parent").write_text(os.environ["STARTED_BY"])
    foreign_server(Path(sys.argv[1])).run("stdio")
