"""A shop with FastMCP, whose tools know nothing of Onceward, and whose every effect is a line in a file. Run as a program,
it serves on stdio.

python fastmcp_shop.py FOLDER
"""

# ruff: noqa: ARG001  # Tools have arguments because their calls differ by them.

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from fastmcp import Context, FastMCP
from fastmcp.exceptions import ToolError
from fastmcp.tools.base import ToolResult
from mcp.types import ImageContent, InputRequiredResult, TextContent

from onceward import Ledger, open_ledger
from onceward.errors import NotDone
from onceward.integrations.fastmcp import OnceMiddleware

RULES: dict[str, dict[str, Any]] = {
    "refund": {"effect": "irreversible", "key_fields": ["order_id"], "how_to_check": "Look into the bank's list."},
    "fails": {"effect": "irreversible", "key_fields": ["order_id"]},
    "declined": {"effect": "irreversible", "key_fields": ["order_id"], "not_done": (LookupError,)},
    "put": {"effect": "idempotent", "key_fields": ["order_id"]},
    "picture": {"effect": "irreversible", "key_fields": ["order_id"]},
    "ask": {"effect": "irreversible", "key_fields": ["order_id"]},
    "price": {"effect": "pure"},
    "gone": {"effect": "irreversible"},
}


def fastmcp_shop(folder: Path, ledger: Ledger, **options: Any) -> FastMCP[Any]:
    server: FastMCP[Any] = FastMCP("shop", auth=options.pop("auth", None))
    server.add_middleware(OnceMiddleware(ledger, RULES, **options))

    def write(line: str) -> int:
        with (folder / "effects").open("a") as file:
            file.write(f"{line}\n")
        return len((folder / "effects").read_text().splitlines())

    @server.tool
    async def refund(order_id: str, amount: int = 0) -> dict[str, int]:
        """Give the money back."""
        return {"refund": write(f"refund {order_id}")}

    @server.tool
    def fails(order_id: str, how: str = "raise") -> ToolResult:
        write(f"fails {order_id}")
        if how == "return":
            return ToolResult("no answer", is_error=True)
        raise ToolError("no answer") if how == "tool error" else TimeoutError("no answer")

    @server.tool
    def declined(order_id: str, how: str = "") -> str:
        if how == "own":
            raise LookupError("no such card")
        if how == "onceward":
            raise NotDone("no such card")
        return f"paid {write(f'declined {order_id}')}"

    @server.tool
    def put(order_id: str, idempotency_key: str = "") -> str:
        write(f"put {order_id}")
        return idempotency_key

    @server.tool
    def picture(order_id: str) -> ToolResult:
        write("picture")
        image = ImageContent(type="image", data="AAAA", mime_type="image/png")
        return ToolResult([image, TextContent(type="text", text="a pixel")], meta={"taken": "today"})

    @server.tool
    async def ask(order_id: str, ctx: Context) -> str | InputRequiredResult:
        """Ask the client to call once more before the effect."""
        if ctx.request_state is None:
            return InputRequiredResult(request_state="asked")
        return f"{ctx.request_state} {write('ask')}"

    @server.tool
    def price(order_id: str) -> int:
        write("price")
        return 49

    @server.tool
    def unlisted(order_id: str) -> str:
        write("unlisted")
        return "ran"

    return server


if __name__ == "__main__":
    with open_ledger(f"sqlite:///{sys.argv[1]}/ledger.db", wait_seconds=20) as ledger:
        fastmcp_shop(Path(sys.argv[1]), ledger).run("stdio", show_banner=False)
