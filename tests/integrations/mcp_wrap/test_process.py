"""`onceward mcp wrap` as a process, between the unmodified client of the `mcp` package and a server that knows nothing of
Onceward. `test_proxy.py` has single messages.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, MCPError
from mcp.client.stdio import stdio_client
from mcp.types import ElicitResult, ImageContent
from tests.forked_python import forked_python
from tests.integrations.mcp_clients import NEWEST, OLDEST, connected, python_server
from tests.integrations.mcp_shop import effects
from tests.waiting import soon, until

FOREIGN = Path(__file__).parent.parent / "mcp_foreign.py"
CONFIG = """
ledger = "sqlite:///{folder}/ledger.db"
unlisted = "pass"

[tools.refund]
effect = "irreversible"
key_fields = ["order_id"]

[tools.put]
effect = "idempotent"

[tools.picture]
effect = "irreversible"

[tools.large]
effect = "irreversible"

[tools.gated]
effect = "irreversible"

[tools.stop]
effect = "irreversible"
how_to_check = "Look into the bank's list."

[tools.ask]
effect = "irreversible"
"""


def command(folder: Path) -> list[str]:
    config = folder / "wrap.toml"
    config.write_text(CONFIG.format(folder=folder))
    foreign = [forked_python("mcp.server"), str(FOREIGN), str(folder)]
    return ["-m", "onceward", "mcp", "wrap", "--config", str(config), "--", *foreign]


@asynccontextmanager
async def wrapped_shop(folder: Path, version: str = NEWEST) -> AsyncIterator[Client]:
    async with connected(stdio_client(python_server(*command(folder))), version) as client:
        yield client


def envelope_of(result: Any) -> dict[str, Any]:
    found: dict[str, Any] = result.meta["onceward"]
    return found


@pytest.mark.parametrize("version", [NEWEST, OLDEST])
def test_a_retry_through_another_proxy_gets_the_first_result(tmp_path: Path, version: str) -> None:
    async def it() -> list[Any]:
        found = []
        for _ in range(2):
            async with wrapped_shop(tmp_path, version) as client:
                found += [await client.call_tool("refund", {"order_id": "1"}) for _ in range(2)]
        return found

    results = asyncio.run(it())

    assert [envelope_of(result)["status"] for result in results] == ["done", "replayed", "replayed", "replayed"]
    # The client validates each result against the output schema of the server.
    assert [result.structured_content for result in results] == [{"refund": 1, "order_id": "1"}] * 4
    assert effects(tmp_path) == ["refund 1"]


def test_everything_else_passes_through(tmp_path: Path) -> None:
    """Also a request of the server during a call, which the older versions of the protocol have."""
    seen: list[float] = []

    async def notice(progress: float, total: float | None, message: str | None) -> None:  # noqa: ARG001
        seen.append(progress)

    async def agree(context: Any, params: Any) -> ElicitResult:  # noqa: ARG001
        return ElicitResult(action="accept", content={"sure": params.message == "Sure?"})

    async def it() -> dict[str, Any]:
        transport = stdio_client(python_server(*command(tmp_path)))
        async with Client(transport, mode="legacy", elicitation_callback=agree) as client:
            assert client.session.server_info is not None
            asked = [await client.call_tool("ask", {"order_id": "1"}) for _ in range(2)]
            return {
                "server": client.session.server_info.name,
                "tools": len((await client.list_tools()).tools),
                "resource": (await client.read_resource("shop://opening")).contents[0].text,  # type: ignore[union-attr]
                "prompt": (await client.get_prompt("greet", {"name": "Ada"})).messages[0].content.text,  # type: ignore[union-attr]
                "pure": (await client.call_tool("price", {"order_id": "1"})).structured_content,
                "steps": (await client.call_tool("steps", {"order_id": "1"}, progress_callback=notice)).meta,
                "asked": [(envelope_of(one)["status"], one.content[0].text) for one in asked],  # type: ignore[union-attr]
            }

    found = asyncio.run(it())

    assert found == {
        "server": "foreign",
        "tools": 9,
        "resource": "9 to 5",
        "prompt": "Greet Ada",
        "pure": {"result": 49},
        "steps": None,
        "asked": [("done", "sure: True"), ("replayed", "sure: True")],
    }
    assert seen == [1, 2]


def test_pictures_are_stored_and_a_result_that_is_too_large_is_not(tmp_path: Path) -> None:
    async def it() -> list[Any]:
        async with wrapped_shop(tmp_path) as client:
            return [await client.call_tool(tool, {"order_id": "1"}) for tool in ("picture", "large") for _ in range(2)]

    first, again, large, large_again = asyncio.run(it())

    assert isinstance(again.content[0], ImageContent)
    assert again.content[:2] == first.content
    assert len(large.content[0].text) > 16 * 1024 * 1024
    assert (envelope_of(large)["status"], envelope_of(large_again)["status"]) == ("done", "replayed")
    assert envelope_of(large_again)["code"] == "outcome-not-kept"
    assert len(large_again.content) == 1
    assert effects(tmp_path) == ["picture", "large"]


@pytest.mark.parametrize(
    ("tool", "effect", "status", "count"), [("gated", "gated 1", "unknown", 1), ("put", "put 1", "done", 2)]
)
def test_a_call_whose_proxy_was_killed_is_in_doubt_or_runs_again(
    tmp_path: Path, tool: str, effect: str, status: str, count: int
) -> None:
    """The server has had the effect, and the proxy dies before it learns of it."""

    async def it() -> Any:
        async with wrapped_shop(tmp_path) as client:
            asking = asyncio.create_task(client.call_tool(tool, {"order_id": "1"}))
            await soon(lambda: effects(tmp_path) == [effect])
            os.kill(int((tmp_path / "parent").read_text()), signal.SIGKILL)
            with pytest.raises(MCPError, match="closed"):
                await asking
        (tmp_path / "open").touch()
        async with wrapped_shop(tmp_path) as client:
            return await client.call_tool(tool, {"order_id": "1"})

    result = asyncio.run(it())

    assert envelope_of(result)["status"] == status
    assert result.is_error is (status == "unknown")
    assert envelope_of(result)["code"] == ("in-doubt" if status == "unknown" else "")
    assert effects(tmp_path) == [effect] * count


class LineClient:
    """A client that writes and reads lines."""

    def __init__(self, folder: Path) -> None:
        self.process = subprocess.Popen(
            [forked_python("onceward.cli.commands.mcp"), *command(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )
        self.send(
            "initialize", {"protocolVersion": OLDEST, "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}}
        )
        assert self.received()["result"]["serverInfo"]["name"] == "foreign"
        self.send("notifications/initialized", number=None)

    def send(self, method: str, params: Any = None, number: int | None = 1) -> None:
        message = {"jsonrpc": "2.0", "id": number, "method": method, "params": params or {}}
        if number is None:
            del message["id"]
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(message).encode() + b"\n")

    def received(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def ended(self) -> int:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        with self.process.stdout:
            return self.process.wait(30)


def test_the_proxy_ends_with_the_server_and_its_exit_code(tmp_path: Path) -> None:
    client = LineClient(tmp_path)
    client.send("tools/call", {"name": "stop", "arguments": {"order_id": "1"}}, 2)
    lost = client.received()

    assert (lost["id"], lost["result"]["isError"]) == (2, True)
    found = lost["result"]["_meta"]["onceward"]
    assert (found["status"], found["code"]) == ("unknown", "in-doubt")
    assert found["how_to_check"].startswith("Look into the bank's list.")
    assert client.ended() == 7
    assert effects(tmp_path) == ["stop 1"]


def test_the_outcome_of_a_call_is_recorded_after_its_client_has_gone(tmp_path: Path) -> None:
    client = LineClient(tmp_path)
    client.send("tools/call", {"name": "gated", "arguments": {"order_id": "1"}}, 2)
    until(lambda: effects(tmp_path))
    assert client.process.stdin is not None
    client.process.stdin.close()
    (tmp_path / "open").touch()
    assert client.ended() == 0

    again = LineClient(tmp_path)
    again.send("tools/call", {"name": "gated", "arguments": {"order_id": "1"}}, 2)
    result = again.received()["result"]
    again.process.terminate()

    assert result["_meta"]["onceward"]["status"] == "replayed"
    assert result["content"][0]["text"] == "gated 1"
    # Not with its input closed, which ends it, too, and with another code.
    assert again.process.wait(30) == 128 + signal.SIGTERM
    again.ended()
    assert effects(tmp_path) == ["gated 1"]
