"""Tools over the Model Context Protocol, through the real package."""

# ruff: noqa: ARG001  # Tools have arguments because their calls differ by them.

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest
from mcp import Client, MCPError
from mcp.types import CallToolResult, RequestParamsMeta, TextContent
from tests.turns.tools.desk import GROUP, Desk
from tests.waiting import soon

from onceward import Ledger, open_ledger
from onceward.turns.adapters.mcp import ENVELOPE_SCHEMA, mcp_server
from onceward.turns.schema import problem
from onceward.turns.tool import Tool, tool
from onceward.turns.toolbox import Toolbox

T = TypeVar("T")

Calls = Callable[..., Coroutine[Any, Any, CallToolResult]]


def refund_tool(done: list[str], **options: Any) -> Tool:
    @tool(**{"effect": "irreversible", "template": "order:{order_id}", **options})
    async def refund(order_id: str, amount: int = 0) -> dict[str, int]:
        """Give the money back."""
        done.append(order_id)
        return {"refund": len(done)}

    return refund


@tool(effect="pure")
def look_up(order_id: str) -> str:
    return f"order {order_id} was shipped"


def talk(
    ledger: Ledger,
    *tools: Tool,
    steps: Callable[[Client], Awaitable[T]],
    mode: str = "auto",
    **settings: Any,
) -> T:
    """Connect a client to a server of these tools, and do something with it."""

    async def it() -> T:
        server = mcp_server(Toolbox(tools), ledger, **{"principal": "alice", "tenant_id": "acme", **settings})
        async with Client(server, mode=mode) as client:
            return await steps(client)

    return asyncio.run(it())


def in_group(group: str = GROUP, name: str = "turn_group_id") -> RequestParamsMeta:
    return {name: group}  # type: ignore[misc]  # an open map


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_the_envelope_is_the_structured_content_of_the_result(ledger: Ledger, mode: str) -> None:
    async def steps(client: Client) -> CallToolResult:
        return await client.call_tool("refund", {"order_id": "1"}, meta=in_group())

    result = talk(ledger, refund_tool([]), steps=steps, mode=mode)

    assert not result.is_error
    envelope = result.structured_content
    assert problem(ENVELOPE_SCHEMA, envelope) is None
    assert (envelope["status"], envelope["result"]) == ("done", {"refund": 1})
    assert envelope["key"] == f"refund:order:1:turn_group:{GROUP}"
    assert isinstance(result.content[0], TextContent)
    assert '"status":"done"' in result.content[0].text


@pytest.mark.parametrize(
    ("effect", "hints"),
    [
        ("pure", (True, False, True)),
        ("idempotent", (False, False, True)),
        ("compensatable", (False, False, False)),
        ("irreversible", (False, True, False)),
    ],
)
def test_the_hints_follow_from_the_class(ledger: Ledger, effect: str, hints: tuple[bool, bool, bool]) -> None:
    undo = {"undo": lambda: None} if effect == "compensatable" else {}

    async def steps(client: Client) -> Any:
        return (await client.list_tools()).tools

    (shown,) = talk(ledger, refund_tool([], effect=effect, **undo), steps=steps)

    assert shown.description == "Give the money back."
    assert shown.input_schema["required"] == ["order_id"]
    assert shown.output_schema == ENVELOPE_SCHEMA
    found = shown.annotations
    assert (found.read_only_hint, found.destructive_hint, found.idempotent_hint) == hints


def test_an_agents_retry_and_an_engines_retry_share_one_effect(tmp_path: Path) -> None:
    """The agent calls over the protocol, its server dies, the engine calls by itself, and the agent tries once more."""
    done: list[str] = []
    refund = refund_tool(done)

    async def steps(client: Client) -> list[dict[str, Any]]:
        results = [await client.call_tool("refund", {"order_id": "1"}, meta=in_group()) for _ in range(2)]
        return [result.structured_content for result in results]

    url = f"sqlite:///{tmp_path}/ledger.db"
    with open_ledger(url) as ledger:
        agent = talk(ledger, refund, steps=steps)
    with open_ledger(url) as ledger:
        engine = Desk(ledger, refund).call("refund", order_id="1").json()
        again = talk(ledger, refund, steps=steps)

    envelopes = [*agent, engine, *again]
    assert [one["status"] for one in envelopes] == ["done"] + ["replayed"] * 4
    assert all(one["receipt"] == agent[0]["receipt"] for one in envelopes)
    assert done == ["1"]


def test_other_groups_and_principals_do_not_meet(ledger: Ledger) -> None:
    done: list[str] = []
    refund = refund_tool(done)

    async def steps(client: Client) -> None:
        for group in ("a", "b", "a"):
            await client.call_tool("refund", {"order_id": "1"}, meta=in_group(group))
        await client.call_tool("refund", {"order_id": "1"}, meta=in_group("c", "idempotency_key"))

    talk(ledger, refund, steps=steps)
    assert len(done) == 3
    talk(ledger, refund, steps=steps, principal=lambda context: f"by {context.method}")
    assert len(done) == 6


def test_a_call_of_no_group_is_refused_unless_it_is_pure(ledger: Ledger) -> None:
    done: list[str] = []

    async def steps(client: Client) -> tuple[CallToolResult, CallToolResult]:
        return (
            await client.call_tool("refund", {"order_id": "1"}),
            await client.call_tool("look_up", {"order_id": "1"}),
        )

    refused, looked = talk(ledger, refund_tool(done), look_up, steps=steps)

    assert refused.is_error
    assert refused.structured_content["status"] == "refused"
    assert "turn_group_id" in refused.structured_content["detail"]
    assert looked.structured_content["result"] == "order 1 was shipped"
    assert done == []


def test_a_server_of_one_conversation_has_its_group(ledger: Ledger) -> None:
    done: list[str] = []

    async def steps(client: Client) -> list[str]:
        results = [await client.call_tool("refund", {"order_id": "1"}) for _ in range(2)]
        return [result.structured_content["status"] for result in results]

    assert talk(ledger, refund_tool(done), steps=steps, turn_group_id="stdio-1") == ["done", "replayed"]
    assert done == ["1"]


def test_a_tool_that_failed_is_an_error_that_says_what_may_be_done(ledger: Ledger) -> None:
    @tool(effect="irreversible", how_to_check="Look at the order.")
    def fails() -> None:
        raise TimeoutError("no answer")

    async def steps(client: Client) -> CallToolResult:
        return await client.call_tool("fails", {}, meta=in_group())

    result = talk(ledger, fails, steps=steps)

    assert result.is_error
    envelope = result.structured_content
    assert (envelope["status"], envelope["may_retry"]) == ("unknown", False)
    assert envelope["how_to_check"].startswith("Look at the order.")


@pytest.mark.parametrize(
    "wrong", [("refunds", {"order_id": "1"}), ("refund", {}), ("refund", {"order_id": 1})], ids=str
)
def test_wrong_calls_are_refused_in_words(ledger: Ledger, wrong: tuple[str, dict[str, Any]]) -> None:
    done: list[str] = []

    async def steps(client: Client) -> CallToolResult:
        return await client.call_tool(*wrong, meta=in_group())

    result = talk(ledger, refund_tool(done), steps=steps)

    assert result.is_error
    assert result.structured_content["status"] == "refused"
    assert done == []


def test_a_client_that_gives_up_does_not_stop_the_effect(ledger: Ledger) -> None:
    done: list[str] = []

    async def it() -> CallToolResult:
        may_end = asyncio.Event()

        @tool(effect="irreversible")
        async def slow() -> str:
            done.append("began")
            await may_end.wait()
            done.append("ended")
            return "sent"

        server = mcp_server(Toolbox([slow]), ledger)
        async with Client(server, mode="legacy") as client:
            first = asyncio.create_task(client.call_tool("slow", {}, meta=in_group()))
            await soon(lambda: done)
            first.cancel()
            await asyncio.wait([first])
            may_end.set()
            return await client.call_tool("slow", {}, meta=in_group())

    result = asyncio.run(it())

    assert (result.structured_content["status"], result.structured_content["result"]) == ("replayed", "sent")
    assert done == ["began", "ended"]


def test_a_ledger_that_is_down_is_an_error_of_the_protocol(ledger: Ledger) -> None:
    async def steps(client: Client) -> None:
        ledger.close()
        with pytest.raises(MCPError, match="closed"):
            await client.call_tool("refund", {"order_id": "1"}, meta=in_group())

    done: list[str] = []
    talk(ledger, refund_tool(done), steps=steps)

    assert done == []


class HttpClient:
    """The protocol by hand over HTTP, as any client of it speaks: a session, and calls in it."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http
        self._headers = {"accept": "application/json, text/event-stream"}

    async def _post(self, method: str, params: dict[str, Any], number: int | None) -> httpx.Response:
        message: dict[str, Any] = {"jsonrpc": "2.0", "method": method, "params": params}
        if number is not None:
            message["id"] = number
        response = await self._http.post("/mcp", json=message, headers=self._headers)
        assert response.is_success, response.text
        return response

    async def open(self) -> None:
        hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
        response = await self._post("initialize", hello, 1)
        self._headers |= {
            "mcp-session-id": response.headers["mcp-session-id"],
            "mcp-protocol-version": "2025-06-18",
        }
        await self._post("notifications/initialized", {}, None)

    async def call(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        response = await self._post("tools/call", {"name": name, "arguments": arguments}, 2)
        found: dict[str, Any] = response.json()["result"]["structuredContent"]
        return found


def test_an_http_session_is_a_group_for_calls_that_name_none(ledger: Ledger) -> None:
    done: list[str] = []

    async def it() -> list[str]:
        server = mcp_server(Toolbox([refund_tool(done)]), ledger)
        app = server.streamable_http_app(json_response=True)
        transport = httpx.ASGITransport(app)
        statuses = []
        async with (
            server.session_manager.run(),
            httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000") as http,
        ):
            for _ in range(2):
                client = HttpClient(http)
                await client.open()
                statuses += [(await client.call("refund", {"order_id": "1"}))["status"] for _ in range(2)]
        return statuses

    assert asyncio.run(it()) == ["done", "replayed", "done", "replayed"]
    assert len(done) == 2
