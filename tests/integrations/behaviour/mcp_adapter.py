"""A toolbox as an MCP server, and the proxy in front of a server that does not know Onceward."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
from mcp import Client
from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.shared.message import SessionMessage
from mcp.types import JSONRPCMessage
from pydantic import TypeAdapter
from tests.integrations.behaviour.agent_process import RULE, Adapter, Shop, run_worker

from onceward import Ledger
from onceward.integrations.mcp import mcp_server
from onceward.integrations.mcp_wrap.config import WrapConfig
from onceward.integrations.mcp_wrap.proxy import Proxy
from onceward.tools import Toolbox, tool

MESSAGE: TypeAdapter[Any] = TypeAdapter(JSONRPCMessage)


class ServerAdapter:
    """`mcp_server`, which returns the envelope."""

    def __init__(self, ledger: Ledger, shop: Shop) -> None:
        @tool(**RULE)
        async def refund(order_id: str, amount: int, note: str = "") -> Any:  # noqa: ARG001
            return await shop.refund(order_id, amount)

        self.server = mcp_server(Toolbox([refund]), ledger)

    async def call(self, arguments: dict[str, Any], conversation: str, call_id: str) -> dict[str, Any]:  # noqa: ARG002
        async with Client(self.server) as client:
            meta: Any = {"turn_group_id": conversation}
            result = await client.call_tool("refund", arguments, meta=meta)
        envelope: dict[str, Any] = json.loads(result.content[0].text)  # type: ignore[union-attr]
        return envelope


class ProxyAdapter:
    """The proxy, which returns the server's own result and the envelope beside it."""

    def __init__(self, ledger: Ledger, shop: Shop) -> None:
        self.ledger = ledger
        self.server = MCPServer("shop")

        @self.server.tool(structured_output=False)
        async def refund(order_id: str, amount: int, note: str = "") -> Any:  # noqa: ARG001
            return json.dumps(await _refund(order_id, amount))

        async def _refund(order_id: str, amount: int) -> Any:
            try:
                return await shop.refund(order_id, amount)
            except OSError as error:
                raise ToolError(str(error)) from error

    async def call(self, arguments: dict[str, Any], conversation: str, call_id: str) -> dict[str, Any]:  # noqa: ARG002
        async with Client(self._transport()) as client:
            meta: Any = {"turn_group_id": conversation}
            return foreign_envelope(await client.call_tool("refund", arguments, meta=meta))

    @asynccontextmanager
    async def _transport(self) -> AsyncIterator[Any]:
        """The client, the proxy and the server in one process, with queues in place of pipes."""
        to_client, client_reads = anyio.create_memory_object_stream[Any](100)
        client_writes, from_client = anyio.create_memory_object_stream[Any](100)
        to_server, server_reads = anyio.create_memory_object_stream[Any](100)
        server_writes, from_server = anyio.create_memory_object_stream[Any](100)
        config = WrapConfig(tools={"refund": RULE})
        proxy = Proxy(config, self.ledger, "shop", _sender(to_client), _sender(to_server))
        low = self.server._lowlevel_server
        tasks = [
            asyncio.create_task(low.run(server_reads, server_writes, low.create_initialization_options())),
            asyncio.create_task(_pump(from_client, proxy.from_client)),
            asyncio.create_task(_pump(from_server, proxy.from_server)),
        ]
        try:
            yield client_reads, client_writes
        finally:
            await proxy.finish()
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)


def foreign_envelope(result: Any) -> dict[str, Any]:
    """The result of the tool and the envelope of the call, as a model gets them."""
    envelope: dict[str, Any] = result.meta["onceward"]
    own = [one.text for one in result.content if '"may_retry"' not in one.text]
    return {**envelope, "result": json.loads(own[0]) if own and envelope["status"] in {"done", "replayed"} else None}


async def _pump(stream: Any, handle: Any) -> None:
    async for one in stream:
        await handle(one.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n")


def _sender(stream: Any) -> Any:
    async def send(line: bytes) -> None:
        with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            await stream.send(SessionMessage(MESSAGE.validate_json(line, by_name=False)))

    return send


_ADAPTERS: dict[str, type[Adapter]] = {"server": ServerAdapter, "wrap": ProxyAdapter}
main = functools.partial(run_worker, _ADAPTERS)
