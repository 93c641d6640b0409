"""Callers, keys, groups and envelopes of tools over the Model Context Protocol, by the package's own client in this
process. `test_mcp_transports.py` has real transports.
"""

# ruff: noqa: ARG001  # Tools have arguments because their calls differ by them.

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar, cast

import pytest
from mcp import Client
from mcp.server import MCPServer
from mcp.types import CallToolResult, RequestParamsMeta, TextContent
from tests.tools.tool_harness import GROUP, ToolHarness
from tests.waiting import soon

from onceward import Ledger, open_ledger
from onceward.errors import InvalidOption
from onceward.integrations.mcp import ENVELOPE_SCHEMA, OnceTools, mcp_server
from onceward.testing import PinnedClock
from onceward.tools.json_schema import problem
from onceward.tools.tool import Tool, tool
from onceward.tools.toolbox import Toolbox
from onceward.turns.adapters import mcp as former

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


def run_client(
    ledger: Ledger,
    *tools: Tool,
    steps: Callable[[Client], Awaitable[T]],
    mode: str = "auto",
    **settings: Any,
) -> T:
    """Connect a client to a server of these tools, and run this with it."""

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

    result = run_client(ledger, refund_tool([]), steps=steps, mode=mode)

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
def test_the_hints_follow_from_the_effect_class(ledger: Ledger, effect: str, hints: tuple[bool, bool, bool]) -> None:
    undo = {"undo": lambda: None} if effect == "compensatable" else {}

    async def steps(client: Client) -> Any:
        return (await client.list_tools()).tools

    (shown,) = run_client(ledger, refund_tool([], effect=effect, **undo), steps=steps)

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
        agent = run_client(ledger, refund, steps=steps)
    with open_ledger(url) as ledger:
        engine = ToolHarness(ledger, refund).call("refund", order_id="1").json()
        again = run_client(ledger, refund, steps=steps)

    envelopes = [*agent, engine, *again]
    assert [one["status"] for one in envelopes] == ["done"] + ["replayed"] * 4
    assert all(one["receipt"] == agent[0]["receipt"] for one in envelopes)
    assert done == ["1"]


def test_other_groups_and_principals_are_separate(ledger: Ledger) -> None:
    done: list[str] = []
    refund = refund_tool(done)

    async def steps(client: Client) -> None:
        for group in ("a", "b", "a"):
            await client.call_tool("refund", {"order_id": "1"}, meta=in_group(group))
        await client.call_tool("refund", {"order_id": "1"}, meta=in_group("a", "idempotency_key"))

    run_client(ledger, refund, steps=steps)
    assert len(done) == 3
    run_client(ledger, refund, steps=steps, principal=lambda context: f"by {context.method}")
    assert len(done) == 6


def test_without_a_group_the_caller_is_the_group_for_a_limited_time(ledger: Ledger, clock: PinnedClock) -> None:
    done: list[str] = []

    async def steps(client: Client) -> list[dict[str, Any]]:
        found = []
        for seconds in (0, 599, 2):
            clock.advance(seconds)
            found.append((await client.call_tool("refund", {"order_id": "1"})).structured_content)
        return found

    first, again, later = run_client(ledger, refund_tool(done), steps=steps)

    assert [first["status"], again["status"], later["status"]] == ["done", "replayed", "done"]
    assert again["first_at"] == first["first_at"] == first["receipt"]["at"]
    assert first["key"] == "refund:order:1:turn_group:alice"
    assert done == ["1", "1"]


def test_the_time_without_a_group_can_be_chosen_and_shortened_by_a_tool(ledger: Ledger, clock: PinnedClock) -> None:
    done: list[str] = []

    async def steps(client: Client) -> None:
        await client.call_tool("refund", {"order_id": "1"})
        clock.advance(31)
        await client.call_tool("refund", {"order_id": "1"})

    run_client(ledger, refund_tool(done), steps=steps, inferred_seconds=30)
    run_client(ledger, refund_tool(done, idempotent_for=20), steps=steps, principal="bob")

    assert len(done) == 4


def test_a_call_without_a_group_is_refused_if_one_is_required_unless_it_is_pure(ledger: Ledger) -> None:
    done: list[str] = []

    async def steps(client: Client) -> tuple[CallToolResult, CallToolResult]:
        return (
            await client.call_tool("refund", {"order_id": "1"}),
            await client.call_tool("look_up", {"order_id": "1"}),
        )

    refused, found = run_client(ledger, refund_tool(done), look_up, steps=steps, require_group=True)

    assert refused.is_error
    envelope = refused.structured_content
    assert (envelope["status"], envelope["code"], envelope["may_retry"]) == ("refused", "invalid-input", False)
    assert "turn_group_id" in envelope["detail"]
    assert envelope["how_to_check"]
    assert found.structured_content["result"] == "order 1 was shipped"
    assert done == []


def test_unnamed_callers_in_this_process_are_local(ledger: Ledger) -> None:
    async def steps(client: Client) -> Any:
        return (await client.call_tool("refund", {"order_id": "1"})).structured_content

    envelope = run_client(ledger, refund_tool([]), steps=steps, principal=None, tenant_id=None)

    assert envelope["key"] == "refund:order:1:turn_group:local"
    assert [entry.scope for entry in asyncio.run(ledger.scan()).entries] == ["onceward:tool:local:local"]


@pytest.mark.parametrize("wrong", ["", 7, None, object], ids=["empty", "number", "none", "a class"])
def test_a_principal_that_is_not_text_is_refused_before_the_effect(ledger: Ledger, wrong: Any) -> None:
    done: list[str] = []

    async def steps(client: Client) -> Any:
        return (await client.call_tool("refund", {"order_id": "1"})).structured_content

    envelope = run_client(ledger, refund_tool(done), steps=steps, principal=lambda _context: wrong)

    assert (envelope["status"], envelope["code"]) == ("refused", "invalid-option")
    assert done == []


@pytest.mark.parametrize(
    "options",
    [{"principal": ""}, {"principal": 7}, {"turn_group_id": 7}, {"turn_group_id": ""}, {"inferred_seconds": -1}],
    ids=str,
)
def test_invalid_options_are_refused_at_once(ledger: Ledger, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption):
        mcp_server(Toolbox(), ledger, **options)


# Idempotency keys.


def test_a_reserved_argument_cannot_be_set_by_the_caller(ledger: Ledger) -> None:
    got: list[str] = []

    @tool(effect="irreversible", provider_key="idempotency_key")
    def pay(amount: int, idempotency_key: str) -> None:
        got.append(idempotency_key)

    async def steps(client: Client) -> Any:
        return (await client.call_tool("pay", {"amount": 1, "idempotency_key": "k"})).structured_content

    envelope = run_client(ledger, pay, steps=steps)

    assert (envelope["status"], envelope["key"]) == ("done", "pay:key:k")
    assert len(got[0]) == 36


@pytest.mark.parametrize(
    ("arguments", "meta"),
    [
        ({"idempotency_key": "a"}, {"idempotency_key": "b"}),
        ({"meta": {"idempotency-key": "a", "idempotency_key": "b"}}, {}),
        ({"meta": {"idempotency-key": "a"}, "idempotency_key": "b"}, {}),
        ({"idempotency_key": ""}, {}),
        ({"idempotency_key": 7}, {}),
        ({}, {"idempotency_key": ["a"]}),
        ({}, {"idempotency_key": "a\nb"}),
        ({}, {"idempotency_key": "x" * 256}),
        ({}, {"turn_group_id": 7}),
        ({}, {"turn_group_id": ""}),
    ],
    ids=str,
)
def test_different_or_invalid_keys_are_refused(ledger: Ledger, arguments: dict[str, Any], meta: dict[str, Any]) -> None:
    done: list[str] = []

    async def steps(client: Client) -> CallToolResult:
        return await client.call_tool("refund", {"order_id": "1", **arguments}, meta=cast("RequestParamsMeta", meta))

    result = run_client(ledger, refund_tool(done), steps=steps)

    assert result.is_error
    assert result.structured_content["status"] == "refused"
    assert result.structured_content["code"] == "invalid-input"
    assert done == []


def test_with_a_key_all_arguments_except_volatile_ones_are_compared(ledger: Ledger) -> None:
    """With a key, even a value that looks like a random id makes another call."""
    ids = ["00000000-0000-0000-0000-000000000001", "00000000-0000-0000-0000-000000000002"]

    @tool(effect="irreversible", key_fields=["order_id"], volatile=["trace"])
    def pay(order_id: str, to: str, trace: str) -> None: ...

    async def steps(client: Client) -> list[str]:
        calls = [(ids[0], "a"), (ids[0], "b"), (ids[1], "a")]
        results = [
            await client.call_tool("pay", {"order_id": "1", "to": to, "trace": trace, "idempotency_key": "k"})
            for to, trace in calls
        ]
        return [result.structured_content["status"] for result in results]

    assert run_client(ledger, pay, steps=steps) == ["done", "replayed", "refused"]


def test_a_server_for_one_conversation_has_its_group(ledger: Ledger) -> None:
    done: list[str] = []

    async def steps(client: Client) -> list[str]:
        results = [await client.call_tool("refund", {"order_id": "1"}) for _ in range(2)]
        return [result.structured_content["status"] for result in results]

    assert run_client(ledger, refund_tool(done), steps=steps, turn_group_id="stdio-1") == ["done", "replayed"]
    assert done == ["1"]


def test_a_failed_tool_is_an_error_that_says_what_to_do(ledger: Ledger) -> None:
    @tool(effect="irreversible", how_to_check="Look at the order.")
    def fails() -> None:
        raise TimeoutError("no answer")

    async def steps(client: Client) -> CallToolResult:
        return await client.call_tool("fails", {}, meta=in_group())

    result = run_client(ledger, fails, steps=steps)

    assert result.is_error
    envelope = result.structured_content
    assert (envelope["status"], envelope["may_retry"]) == ("unknown", False)
    assert envelope["how_to_check"].startswith("Look at the order.")


@pytest.mark.parametrize(
    "wrong", [("refunds", {"order_id": "1"}), ("refund", {}), ("refund", {"order_id": 1})], ids=str
)
def test_invalid_calls_are_refused_with_a_message(ledger: Ledger, wrong: tuple[str, dict[str, Any]]) -> None:
    done: list[str] = []

    async def steps(client: Client) -> CallToolResult:
        return await client.call_tool(*wrong, meta=in_group())

    result = run_client(ledger, refund_tool(done), steps=steps)

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


def test_a_ledger_outage_is_reported_to_the_model(ledger: Ledger) -> None:
    async def steps(client: Client) -> CallToolResult:
        ledger.close()
        return await client.call_tool("refund", {"order_id": "1"}, meta=in_group())

    done: list[str] = []
    result = run_client(ledger, refund_tool(done), steps=steps)

    assert result.is_error
    envelope = result.structured_content
    assert (envelope["status"], envelope["code"], envelope["may_retry"]) == ("unknown", "store-closed", False)
    assert envelope["detail"]
    assert envelope["how_to_check"]
    assert done == []


def test_a_call_in_progress_is_reported_to_the_model(ledger: Ledger) -> None:
    async def it() -> CallToolResult:
        may_end = asyncio.Event()
        began = asyncio.Event()

        @tool(effect="irreversible")
        async def slow() -> None:
            began.set()
            await may_end.wait()

        async with Client(mcp_server(Toolbox([slow]), ledger, wait_seconds=0)) as client:
            first = asyncio.create_task(client.call_tool("slow", {}))
            await began.wait()
            busy = await client.call_tool("slow", {})
            may_end.set()
            await first
            return busy

    result = asyncio.run(it())

    assert not result.is_error
    envelope = result.structured_content
    assert (envelope["status"], envelope["code"], envelope["may_retry"]) == ("in_progress", "busy", True)
    assert "again" in envelope["how_to_check"]


# As an extension of a server.


def test_the_program_calls_the_tools_of_its_own_server_as_local(ledger: Ledger) -> None:
    done: list[str] = []
    server = MCPServer("shop", extensions=[OnceTools(Toolbox([refund_tool(done)]), ledger)])

    async def twice() -> list[Any]:
        return [await server.call_tool("refund", {"order_id": "1"}) for _ in range(2)]

    results = asyncio.run(twice())

    assert [result.structured_content["status"] for result in results] == ["done", "replayed"]
    assert results[0].structured_content["key"] == "refund:order:1:turn_group:local"
    assert done == ["1"]


def test_every_option_is_in_the_guide_with_its_default() -> None:
    guide = (Path(__file__).parent.parent.parent / "docs" / "guides" / "mcp.md").read_text("utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \| `([^`]+)` \|", guide.partition("## Options")[2], re.MULTILINE))
    options = {
        name: one.default
        for name, one in inspect.signature(OnceTools).parameters.items()
        if one.default is not one.empty
    }

    assert rows == {name: f"{value:g}" if isinstance(value, float) else str(value) for name, value in options.items()}


def test_the_old_import_path_still_works() -> None:
    assert former.mcp_server is mcp_server
