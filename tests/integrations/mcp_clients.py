"""Unmodified clients of the `mcp` package, of any version of the protocol, to servers on stdio and on sockets."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Self

import httpx2
import uvicorn
from mcp import Client, StdioServerParameters
from mcp.client.sse import sse_client
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.types.version import HANDSHAKE_PROTOCOL_VERSIONS, LATEST_MODERN_VERSION
from tests.forked_python import forked_python

NEWEST = LATEST_MODERN_VERSION
OLDEST = HANDSHAKE_PROTOCOL_VERSIONS[0]
VERSIONS = (NEWEST, HANDSHAKE_PROTOCOL_VERSIONS[-1], OLDEST)

SHOP = Path(__file__).parent / "mcp_shop.py"


class _Offer:
    """Rewrite the version in a client's handshake, as if it knew no newer one."""

    def __init__(self, stream: Any, version: str) -> None:
        self._stream = stream
        self._version = version

    async def send(self, item: Any) -> None:
        if getattr(item.message, "method", None) == "initialize":
            item.message.params["protocolVersion"] = self._version
        await self._stream.send(item)

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def __aenter__(self) -> Self:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> Any:
        return await self._stream.__aexit__(*error)


@asynccontextmanager
async def _offering(transport: AbstractAsyncContextManager[Any], version: str) -> AsyncIterator[Any]:
    async with transport as (read, write):
        yield read, _Offer(write, version)


@asynccontextmanager
async def connected(transport: AbstractAsyncContextManager[Any], version: str = NEWEST) -> AsyncIterator[Client]:
    """A client that has agreed with the server on this version."""
    client = Client(transport) if version == NEWEST else Client(_offering(transport, version), mode="legacy")
    async with client:
        assert client.session.protocol_version == version
        yield client


def over_stdio(folder: Path) -> AbstractAsyncContextManager[Any]:
    """Start the shop in its own process."""
    return stdio_client(python_server(str(SHOP), str(folder)))


def python_server(*arguments: str) -> StdioServerParameters:
    """A Python process that imports the same source as this one: a client passes on few variables by itself."""
    env = {name: value for name in ("PYTHONPATH",) if (value := os.environ.get(name)) is not None}
    command = forked_python("mcp.server", "onceward.integrations.mcp", "onceward.store.sqlite")
    return StdioServerParameters(command=command, args=list(arguments), env=env)


@asynccontextmanager
async def over_http(url: str, **headers: str) -> AsyncIterator[Any]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    async with (
        httpx2.AsyncClient(headers=named, timeout=30) as http,
        streamable_http_client(url, http_client=http) as streams,
    ):
        yield streams


@asynccontextmanager
async def over_sse(url: str) -> AsyncIterator[Any]:
    """The oldest transport over HTTP, with server-sent events."""
    async with sse_client(url.removesuffix("/mcp") + "/sse") as streams:
        yield streams


@asynccontextmanager
async def served(app: Any) -> AsyncIterator[str]:
    """The address of the application on a real socket."""
    config = uvicorn.Config(app, host="127.0.0.1", port=0, log_level="warning", timeout_graceful_shutdown=5)
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    try:
        while not server.started:
            assert not serving.done(), "the server ended before it listened"
            await asyncio.sleep(0)
        (port,) = {listening.getsockname()[1] for one in server.servers for listening in one.sockets}
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        server.should_exit = True
        await serving
