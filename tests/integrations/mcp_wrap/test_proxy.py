"""Messages through the proxy, between a client and a server that the tests play. `test_process.py` has real processes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest
from tests.backends import BACKENDS, Backend

from onceward import Ledger
from onceward.core.verdict import Committed
from onceward.integrations.mcp_wrap.config import WrapConfig
from onceward.integrations.mcp_wrap.proxy import Proxy
from onceward.testing import PinnedClock

T = TypeVar("T")


@pytest.fixture
def backend() -> Backend:
    """One store is enough here."""
    return BACKENDS["memory"]


RULES: dict[str, dict[str, Any]] = {
    "pay": {"effect": "irreversible", "key_fields": ["order"], "how_to_check": "Look into the bank's list."},
    "sure": {"effect": "irreversible", "not_done": True},
    "put": {"effect": "idempotent", "key_fields": ["order"]},
    "look": {"effect": "pure"},
}
PAID = {"content": [{"type": "text", "text": "paid"}], "structuredContent": {"paid": True}}


class Pair:
    """The client's and the server's side of a proxy."""

    def __init__(self, ledger: Ledger, **settings: Any) -> None:
        self.to_client: asyncio.Queue[Any] = asyncio.Queue()
        self.to_server: asyncio.Queue[bytes] = asyncio.Queue()
        self.broken = False
        config = WrapConfig(**{"tools": RULES, **settings})
        self.proxy = Proxy(config, ledger, "bank", self._deliver, self._accept)

    async def _deliver(self, line: bytes) -> None:
        assert line.endswith(b"\n")
        self.to_client.put_nowait(line)

    async def _accept(self, line: bytes) -> None:
        if self.broken:
            raise BrokenPipeError
        self.to_server.put_nowait(line)

    async def client(self, message: Any) -> None:
        await self.proxy.from_client(json.dumps(message).encode() + b"\n")

    async def server(self, message: Any) -> None:
        await self.proxy.from_server(json.dumps(message).encode() + b"\n")

    async def received_by_client(self) -> Any:
        return json.loads(await asyncio.wait_for(self.to_client.get(), 10))

    async def received_by_server(self) -> Any:
        return json.loads(await asyncio.wait_for(self.to_server.get(), 10))

    async def call(self, tool: str, response: Any = PAID, *, number: Any = 1, **arguments: Any) -> Any:
        """Call a tool. The server responds if it gets the call: with a result, or with a whole response."""
        meta = arguments.pop("_meta", None)
        await self.client(
            request(tool, number, {"order": "1", **arguments}, **({} if meta is None else {"_meta": meta}))
        )
        answered = asyncio.ensure_future(self.to_client.get())
        asked = asyncio.ensure_future(self.to_server.get())
        await asyncio.wait([answered, asked], timeout=10, return_when=asyncio.FIRST_COMPLETED)
        if asked.done():
            sent = json.loads(asked.result())
            await self.server(
                {"jsonrpc": "2.0", "id": sent["id"], **(response if "error" in response else {"result": response})}
            )
        else:
            asked.cancel()
        return json.loads(await asyncio.wait_for(answered, 10))


def request(tool: str, number: Any, arguments: Any, **params: Any) -> dict[str, Any]:
    return {
        "jsonrpc": "2.0",
        "id": number,
        "method": "tools/call",
        "params": {"name": tool, "arguments": arguments, **params},
    }


def status(response: Any) -> tuple[str, str]:
    about = response["result"]["_meta"]["onceward"]
    return about["status"], about["code"]


def play(ledger: Ledger, steps: Callable[[Pair], Awaitable[T]], **settings: Any) -> T:
    async def it() -> T:
        pair = Pair(ledger, **settings)
        found = await steps(pair)
        assert pair.to_client.empty()
        return found

    return asyncio.run(it())


# Everything but calls.


@pytest.mark.parametrize(
    "line",
    [
        b'{"jsonrpc": "2.0","id":1,"method":"initialize",  "params":{"x":1.10}}\n',
        b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n',
        b'{"jsonrpc":"2.0","id":"a","method":"resources/read","params":{"uri":"shop://x"}}\n',
        b'{"jsonrpc":"2.0","id":3,"method":"of/the/future","params":[1e999]}\n',
        b'{"jsonrpc":"2.0","id":4,"result":{"action":"accept"}}\n',
        b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":9}}\n',
        b'{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{"name":"look","arguments":{}}}\n',
        b'{"jsonrpc":"2.0","id":6,"method":"tools/call","params":{"name":7}}\n',
        b'{"jsonrpc":"2.0","id":7,"method":"tools/call"}\n',
        b'"neither"\n',
    ],
)
def test_other_messages_of_the_client_pass_byte_for_byte(ledger: Ledger, line: bytes) -> None:
    async def steps(pair: Pair) -> bytes:
        await pair.proxy.from_client(line)
        return pair.to_server.get_nowait()

    assert play(ledger, steps) == line


@pytest.mark.parametrize(
    "line",
    [
        b'{"jsonrpc":"2.0","id":1,"result":{"x":  1.10}}\n',
        b'{"jsonrpc":"2.0","id":1,"method":"sampling/createMessage","params":{}}\n',
        b'{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1}}\n',
        b'{"jsonrpc":"2.0","id":1,"error":{"code":-1,"message":""}}\n',
        b"a debugging print\n",
    ],
)
def test_other_messages_of_the_server_pass_byte_for_byte(ledger: Ledger, line: bytes) -> None:
    """Also while a call with the same id is running: client and server count their requests separately."""

    async def steps(pair: Pair) -> bytes:
        await pair.proxy.from_server(line)
        return pair.to_client.get_nowait()  # type: ignore[no-any-return]

    assert play(ledger, steps) == line


def test_a_request_of_the_server_with_the_id_of_a_call_is_not_its_response(ledger: Ledger) -> None:
    async def steps(pair: Pair) -> list[Any]:
        await pair.client(request("pay", 1, {"order": "1"}))
        await pair.received_by_server()
        await pair.server({"jsonrpc": "2.0", "id": 1, "method": "elicitation/create", "params": {}})
        asked = await pair.received_by_client()
        await pair.server({"jsonrpc": "2.0", "id": 1, "result": PAID})
        return [asked["method"], status(await pair.received_by_client())]

    assert play(ledger, steps) == ["elicitation/create", ("done", "")]


def test_a_line_that_is_not_json_is_not_passed_on(ledger: Ledger) -> None:
    """The server might read it as a call."""
    deep = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":' + b"[" * 100_000 + b"]" * 100_000 + b"}\n"

    async def steps(pair: Pair) -> list[int]:
        for line in (b"{\n", b"\xff\n", deep):
            await pair.proxy.from_client(line)
        assert pair.to_server.empty()
        return [(await pair.received_by_client())["error"]["code"] for _ in range(3)]

    assert play(ledger, steps) == [-32700] * 3


# Calls.


def test_a_repeated_call_gets_the_first_result_and_does_not_reach_the_server(ledger: Ledger) -> None:
    async def steps(pair: Pair) -> tuple[Any, Any]:
        first = await pair.call("pay", number=1)
        again = await pair.call("pay", number=2)
        assert pair.to_server.empty()
        return first, again

    first, again = play(ledger, steps)

    assert (first["id"], again["id"]) == (1, 2)
    assert (status(first), status(again)) == (("done", ""), ("replayed", ""))
    assert first["result"]["content"] == PAID["content"]
    assert again["result"]["structuredContent"] == PAID["structuredContent"]
    assert again["result"]["content"][0] == PAID["content"][0]  # type: ignore[index]
    about = json.loads(again["result"]["content"][1]["text"])
    assert about == again["result"]["_meta"]["onceward"]
    assert about["first_at"] == first["result"]["_meta"]["onceward"]["receipt"]["at"]
    assert about["key"] == "pay:1:turn_group:local"


def test_the_id_of_a_request_is_not_a_key(ledger: Ledger) -> None:
    """A client counts from 1 again after a restart."""

    async def steps(pair: Pair) -> list[str]:
        return [status(await pair.call("pay", number=1, order=order))[0] for order in ("1", "2", "1")]

    assert play(ledger, steps) == ["done", "done", "replayed"]


def test_a_call_with_unchanged_arguments_reaches_the_server_byte_for_byte(ledger: Ledger) -> None:
    line = (
        b'{"jsonrpc":"2.0", "id":1,"method":"tools/call","params":{"name":"pay","arguments":{"order":"1","n":1.10}}}\n'
    )

    async def steps(pair: Pair) -> bytes:
        await pair.proxy.from_client(line)
        sent = await pair.to_server.get()
        pair.proxy.server_ended()
        await pair.received_by_client()
        return sent

    assert play(ledger, steps) == line


def test_a_tool_that_is_not_listed_is_refused_or_passed(ledger: Ledger) -> None:
    async def steps(pair: Pair) -> Any:
        return (await pair.call("wipe"))["result"]

    refused = play(ledger, steps)
    passed = play(ledger, steps, unlisted="pass")

    assert refused["isError"] is True
    assert refused["_meta"]["onceward"]["code"] == "not-found"
    assert "[tools.wipe]" in refused["content"][0]["text"]
    assert "structuredContent" not in refused
    assert passed == PAID


def test_without_a_configuration_every_call_is_refused(ledger: Ledger) -> None:
    async def steps(pair: Pair) -> tuple[str, str]:
        return status(await pair.call("pay"))

    assert play(ledger, steps, tools={}) == ("refused", "not-found")


def test_other_arguments_for_the_same_key_are_refused(ledger: Ledger) -> None:
    async def steps(pair: Pair) -> list[tuple[str, str]]:
        key = {"idempotency_key": "k"}
        return [status(await pair.call("pay", amount=amount, _meta=key)) for amount in (1, 1, 2)]

    assert play(ledger, steps) == [("done", ""), ("replayed", ""), ("refused", "key-reused")]


def test_a_group_of_the_request_or_of_the_configuration_separates_calls(ledger: Ledger) -> None:
    async def named(pair: Pair) -> list[str]:
        return [status(await pair.call("pay", _meta={"turn_group_id": group}))[0] for group in ("a", "b", "a")]

    async def unnamed(pair: Pair) -> str:
        return status(await pair.call("pay"))[0]

    assert play(ledger, named) == ["done", "done", "replayed"]
    assert [play(ledger, unnamed, turn_group_id=group) for group in ("a", "c")] == ["replayed", "done"]


def test_without_a_key_or_a_group_a_call_is_remembered_for_ten_minutes(ledger: Ledger, clock: PinnedClock) -> None:
    async def steps(pair: Pair) -> list[str]:
        found = []
        for seconds in (0, 599, 2):
            clock.advance(seconds)
            found.append(status(await pair.call("pay"))[0])
        return found

    assert play(ledger, steps) == ["done", "replayed", "done"]


def test_a_required_group_refuses_calls_without_one(ledger: Ledger) -> None:
    async def steps(pair: Pair) -> tuple[str, str]:
        return status(await pair.call("pay"))

    assert play(ledger, steps, require_group=True) == ("refused", "invalid-input")


def test_servers_with_other_names_and_other_callers_share_nothing(ledger: Ledger) -> None:
    async def it() -> list[str]:
        found = []
        for server, principal in (("bank", "ada"), ("shop", "ada"), ("bank", "bob"), ("bank", "ada")):
            pair = Pair(ledger, principal=principal)
            pair.proxy = Proxy(
                WrapConfig(tools=RULES, principal=principal), ledger, server, pair._deliver, pair._accept
            )
            found.append(status(await pair.call("pay"))[0])
        return found

    assert asyncio.run(it()) == ["done", "done", "done", "replayed"]


# A key in the arguments.


async def _list_tools(pair: Pair, *tools: Any) -> None:
    sent = await pair.received_by_server()
    assert sent["method"] == "tools/list"
    half = [{"name": "other", "inputSchema": {}}] if "cursor" not in sent["params"] else list(tools)
    cursor = {} if "cursor" in sent["params"] else {"nextCursor": "2"}
    await pair.server({"jsonrpc": "2.0", "id": sent["id"], "result": {"tools": half, **cursor}})


@pytest.mark.parametrize(
    ("properties", "remaining"),
    [({"order": {}}, {"order": "1"}), ({"order": {}, "idempotency_key": {}}, {"order": "1", "idempotency_key": "k"})],
)
def test_a_key_is_removed_unless_the_servers_list_declares_it(
    ledger: Ledger, properties: Any, remaining: dict[str, str]
) -> None:
    """The client has not asked for the list, so the proxy does, and the client does not see it."""
    meta = {"io.modelcontextprotocol/protocolVersion": "2026-07-28", "progressToken": 1}

    async def steps(pair: Pair) -> tuple[Any, Any]:
        await pair.client(request("pay", 1, {"order": "1", "idempotency_key": "k"}, _meta=meta))
        await _list_tools(pair)
        await _list_tools(pair, {"name": "pay", "inputSchema": {"properties": properties}})
        sent = await pair.received_by_server()
        await pair.server({"jsonrpc": "2.0", "id": 1, "result": PAID})
        return sent, await pair.received_by_client()

    sent, response = play(ledger, steps)

    assert sent["params"] == {"name": "pay", "arguments": remaining, "_meta": meta}
    assert response["result"]["_meta"]["onceward"]["key"] == "pay:key:k"
    assert response["result"]["resultType"] == "complete"


def test_the_list_that_the_client_asked_for_is_used_until_it_changes(ledger: Ledger) -> None:
    tools = {"tools": [{"name": "pay", "inputSchema": {"properties": {"idempotency_key": {}}}, "outputSchema": {}}]}

    async def steps(pair: Pair) -> tuple[Any, str]:
        await pair.client({"jsonrpc": "2.0", "id": 1, "method": "tools/list"})
        await pair.received_by_server()
        await pair.server({"jsonrpc": "2.0", "id": 1, "result": tools})
        assert (await pair.received_by_client())["result"] == tools
        await pair.client(request("pay", 2, {"order": "1", "idempotency_key": "k"}))
        sent = await pair.received_by_server()
        await pair.server({"jsonrpc": "2.0", "id": 2, "result": PAID})
        await pair.received_by_client()
        await pair.server({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
        await pair.received_by_client()
        await pair.client(request("pay", 3, {"order": "1", "idempotency_key": "k"}))
        asked = await pair.received_by_server()
        pair.proxy.server_ended()
        assert status(await pair.received_by_client()) == ("refused", "invalid-input")
        return sent["params"]["arguments"], asked["method"]

    assert play(ledger, steps) == ({"order": "1", "idempotency_key": "k"}, "tools/list")


# Errors.

FAILED = {"content": [{"type": "text", "text": "no answer"}], "isError": True}


def test_an_error_of_an_irreversible_tool_leaves_the_call_in_doubt(ledger: Ledger) -> None:
    async def steps(pair: Pair) -> tuple[Any, Any]:
        first, again = await pair.call("pay", FAILED), await pair.call("pay")
        assert pair.to_server.empty()
        return first["result"], again["result"]

    first, again = play(ledger, steps)

    assert first["isError"] is again["isError"] is True
    assert first["content"][0] == FAILED["content"][0]  # type: ignore[index]
    for result in (first, again):
        about = result["_meta"]["onceward"]
        assert (about["status"], about["code"], about["may_retry"]) == ("unknown", "in-doubt", False)
        assert about["how_to_check"].startswith("Look into the bank's list.")
        assert json.loads(result["content"][-1]["text"]) == about


def test_an_error_that_proves_that_nothing_happened_lets_the_call_run_again(ledger: Ledger) -> None:
    async def steps(pair: Pair) -> list[tuple[str, str]]:
        return [status(await pair.call("sure", response)) for response in (FAILED, PAID, FAILED)]

    assert play(ledger, steps) == [("refused", ""), ("done", ""), ("replayed", "")]


def test_an_idempotent_tool_runs_again_after_an_error(ledger: Ledger) -> None:
    async def steps(pair: Pair) -> list[tuple[str, str]]:
        return [status(await pair.call("put", response)) for response in (FAILED, PAID, FAILED)]

    assert play(ledger, steps) == [("unknown", ""), ("done", ""), ("replayed", "")]


@pytest.mark.parametrize("code", [-32700, -32600, -32601, -32602])
def test_a_protocol_error_about_the_request_is_passed_on_and_nothing_is_recorded(ledger: Ledger, code: int) -> None:
    error = {"error": {"code": code, "message": "Unknown tool: pay", "data": {"x": 1}}}

    async def steps(pair: Pair) -> tuple[Any, tuple[str, str]]:
        return await pair.call("pay", error, number="a"), status(await pair.call("pay"))

    assert play(ledger, steps) == ({"jsonrpc": "2.0", "id": "a", **error}, ("done", ""))


def test_any_other_error_leaves_an_irreversible_call_in_doubt(ledger: Ledger) -> None:
    error = {"error": {"code": -32603, "message": "internal"}}

    async def steps(pair: Pair) -> list[tuple[str, str]]:
        return [status(await pair.call("pay", error)), status(await pair.call("pay"))]

    assert play(ledger, steps) == [("unknown", "in-doubt")] * 2


def test_a_call_for_which_the_server_needs_input_has_not_happened(ledger: Ledger) -> None:
    asks = {"resultType": "input_required", "requestState": "s", "inputRequests": {"sure": {}}}

    async def steps(pair: Pair) -> list[Any]:
        first = await pair.call("pay", asks)
        await pair.client(request("pay", 2, {"order": "1"}, requestState="s", inputResponses={"sure": {}}))
        sent = await pair.received_by_server()
        assert sent["params"]["requestState"] == "s"
        await pair.server({"jsonrpc": "2.0", "id": 2, "result": PAID})
        return [first["result"], status(await pair.received_by_client()), status(await pair.call("pay", asks))]

    assert play(ledger, steps) == [asks, ("done", ""), ("replayed", "")]


OPEN_TYPE: dict[str, Any] = {"properties": {"order": {"type": "string"}, "amount": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("schema", "refused"),
    [
        ({**OPEN_TYPE, "required": ["amount"]}, True),
        ({"properties": {"order": {"type": "integer"}}}, True),
        ({**OPEN_TYPE, "additionalProperties": False}, True),
        ({**OPEN_TYPE, "additionalProperties": False, "patternProperties": {"^x": {}}}, False),
        ({"properties": {"order": {"$ref": "#/$defs/Order"}}}, False),
        ({"properties": {"order": {"anyOf": [True]}}}, False),
        ({"properties": 7}, False),
        (True, False),
    ],
    ids=str,
)
def test_arguments_that_the_servers_schema_does_not_allow_are_refused_before_the_call(
    ledger: Ledger, schema: Any, refused: bool
) -> None:
    """The server would report them like an error after the effect. A schema that is not understood is left to it."""

    async def steps(pair: Pair) -> tuple[str, str]:
        await pair.client({"jsonrpc": "2.0", "id": 1, "method": "tools/list"})
        await pair.received_by_server()
        await pair.server({"jsonrpc": "2.0", "id": 1, "result": {"tools": [{"name": "pay", "inputSchema": schema}]}})
        await pair.received_by_client()
        found = status(await pair.call("pay", x1=1))
        assert (await ledger.scan()).entries == () or not refused
        return found

    assert play(ledger, steps) == (("refused", "invalid-input") if refused else ("done", ""))


@pytest.mark.parametrize("params", [{"arguments": [1]}, {"arguments": {"order": "1"}, "task": {"ttl": 60}}], ids=str)
def test_calls_that_cannot_be_recorded_are_refused(ledger: Ledger, params: dict[str, Any]) -> None:
    async def steps(pair: Pair) -> tuple[str, str]:
        await pair.client({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "pay", **params}})
        found = status(await pair.received_by_client())
        assert pair.to_server.empty()
        return found

    assert play(ledger, steps) == ("refused", "invalid-input")


def test_calls_of_a_server_that_ended_are_in_doubt_and_later_ones_are_refused(ledger: Ledger) -> None:
    async def steps(pair: Pair) -> list[tuple[str, str]]:
        await pair.client(request("pay", 1, {"order": "1"}))
        await pair.received_by_server()
        pair.proxy.server_ended()
        lost = status(await pair.received_by_client())
        return [lost, status(await pair.call("pay", order="2")), status(await pair.call("pay"))]

    lost, refused, again = play(ledger, steps)

    assert lost == again == ("unknown", "in-doubt")
    assert refused == ("refused", "")


def test_a_call_that_cannot_be_written_has_not_happened(ledger: Ledger) -> None:
    async def steps(pair: Pair) -> list[Any]:
        pair.broken = True
        await pair.client(request("pay", 1, {"order": "1"}))
        refused = status(await pair.received_by_client())
        await pair.client({"jsonrpc": "2.0", "id": 2, "method": "ping"})
        ping = (await pair.received_by_client())["error"]["code"]
        pair.broken = False
        return [refused, ping, status(await pair.call("pay"))]

    assert play(ledger, steps) == [("refused", ""), -32603, ("done", "")]


def test_a_ledger_outage_is_reported_to_the_model(ledger: Ledger) -> None:
    async def steps(pair: Pair) -> tuple[str, str]:
        ledger.close()
        found = status(await pair.call("pay"))
        assert pair.to_server.empty()
        return found

    assert play(ledger, steps) == ("unknown", "store-closed")


@pytest.mark.parametrize("structured", [False, True])
def test_an_operators_verdict_is_the_result_of_a_retry(ledger: Ledger, structured: bool) -> None:
    """Clients refuse a result that does not match the output schema of the tool, unless it is an error."""

    async def steps(pair: Pair) -> Any:
        listed = {"tools": [{"name": "pay", "inputSchema": {}, **({"outputSchema": {}} if structured else {})}]}
        await pair.call("pay", FAILED)
        (entry,) = (await ledger.scan()).entries
        scope = entry.scope.removeprefix(f"{ledger.namespace}:")
        await ledger.resolve(scope, entry.key, entry.version, Committed({"bank": 7}), note="seen in the bank")
        return (await pair.call("pay", listed))["result"]  # the proxy asks for the list of tools

    result = play(ledger, steps)

    assert result["_meta"]["onceward"]["status"] == "replayed"
    assert result["isError"] is structured
    assert json.loads(result["content"][0]["text"]) == {"bank": 7}


# Cancellation, duplicates and batches.


def test_a_cancelled_call_continues_and_its_retry_gets_the_result(ledger: Ledger) -> None:
    async def steps(pair: Pair) -> tuple[str, str]:
        await pair.client(request("pay", 1, {"order": "1"}))
        await pair.received_by_server()
        await pair.client({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}})
        await pair.server({"jsonrpc": "2.0", "id": 1, "result": PAID})
        await pair.proxy.finish()
        assert pair.to_server.empty()
        assert pair.to_client.empty()
        return status(await pair.call("pay", number=2))

    assert play(ledger, steps) == ("replayed", "")


def test_a_call_that_was_cancelled_before_it_began_does_not_begin(ledger: Ledger) -> None:
    """It waits for a running duplicate, which turns out to have had no effect."""
    refused = {"jsonrpc": "2.0", "id": 1, "error": {"code": -32602, "message": "no such order"}}

    async def steps(pair: Pair) -> int:
        await pair.client(request("pay", 1, {"order": "1"}))
        await pair.received_by_server()
        await pair.client(request("pay", 2, {"order": "1"}))
        await pair.client({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 2}})
        await pair.server(refused)
        await pair.proxy.finish(10)
        assert pair.to_server.empty()
        return int((await pair.received_by_client())["id"])

    assert play(ledger, steps) == 1


def test_concurrent_duplicates_reach_the_server_once(ledger: Ledger) -> None:
    async def steps(pair: Pair) -> list[str]:
        for number in range(3):
            await pair.client(request("pay", number, {"order": "1"}))
        sent = await pair.received_by_server()
        await pair.server({"jsonrpc": "2.0", "id": sent["id"], "result": PAID})
        found = [status(await pair.received_by_client())[0] for _ in range(3)]
        assert pair.to_server.empty()
        return sorted(found)

    assert play(ledger, steps) == ["done", "replayed", "replayed"]


def test_an_id_that_is_in_use_and_a_call_without_an_id_do_not_reach_the_server(ledger: Ledger) -> None:
    async def steps(pair: Pair) -> tuple[int, str]:
        await pair.client(request("pay", 1, {"order": "1"}))
        await pair.received_by_server()
        await pair.client(request("pay", 1, {"order": "2"}))
        await pair.client({"jsonrpc": "2.0", "method": "tools/call", "params": {"name": "pay", "arguments": {}}})
        assert pair.to_server.empty()
        code = (await pair.received_by_client())["error"]["code"]
        await pair.server({"jsonrpc": "2.0", "id": 1, "result": PAID})
        return code, status(await pair.received_by_client())[0]

    assert play(ledger, steps) == (-32600, "done")


def test_calls_in_a_batch_are_intercepted(ledger: Ledger) -> None:
    """Versions before 2025-06 have batches."""

    async def steps(pair: Pair) -> list[str]:
        ping = {"jsonrpc": "2.0", "id": 9, "method": "ping"}
        await pair.client([ping, request("pay", 1, {"order": "1"}), request("pay", "1", {"order": "1"})])
        sent = {message["method"]: message for message in [await pair.received_by_server() for _ in range(2)]}
        done = {"jsonrpc": "2.0", "id": sent["tools/call"]["id"], "result": PAID}
        await pair.server([{"jsonrpc": "2.0", "id": 9, "result": {}}, done])
        assert (await pair.received_by_client())["id"] == 9
        return sorted([status(await pair.received_by_client())[0] for _ in range(2)])

    assert play(ledger, steps) == ["done", "replayed"]
