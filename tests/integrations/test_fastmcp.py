"""Tools of a FastMCP server behind the middleware, by unmodified clients."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
from fastmcp import Client as FastClient
from fastmcp.exceptions import ToolError
from fastmcp.server.auth.providers.jwt import StaticTokenVerifier
from mcp import Client
from mcp.client.stdio import stdio_client
from mcp.types import ImageContent
from tests.backends import BACKENDS, Backend
from tests.integrations.fastmcp_shop import RULES, fastmcp_shop
from tests.integrations.mcp_clients import NEWEST, OLDEST, connected, over_http, python_server, served
from tests.integrations.mcp_shop import effects, ledger_of

from onceward import Ledger
from onceward.core.claim import Status
from onceward.errors import InvalidOption
from onceward.integrations.fastmcp import OnceMiddleware
from onceward.testing import PinnedClock

T = TypeVar("T")

SHOP = Path(__file__).parent / "fastmcp_shop.py"


@pytest.fixture
def backend() -> Backend:
    """One store is enough here."""
    return BACKENDS["memory"]


def play(ledger: Ledger, folder: Path, steps: Callable[[Client], Awaitable[T]], **options: Any) -> T:
    """Connect the client of the `mcp` package to the shop, and run this with it."""

    async def it() -> T:
        async with Client(fastmcp_shop(folder, ledger, **options)._mcp_server) as client:
            return await steps(client)

    return asyncio.run(it())


def envelope_of(result: Any) -> dict[str, Any]:
    found: dict[str, Any] = result.meta["onceward"]
    return found


def status(result: Any) -> tuple[str, str]:
    return envelope_of(result)["status"], envelope_of(result)["code"]


async def call(client: Client, tool: str, meta: Any = None, **arguments: Any) -> Any:
    return await client.call_tool(tool, {"order_id": "1", **arguments}, meta=meta)


def test_a_repeated_call_gets_the_first_result(ledger: Ledger, tmp_path: Path) -> None:
    async def steps(client: Client) -> list[Any]:
        return [await call(client, "refund") for _ in range(2)]

    first, again = play(ledger, tmp_path, steps)

    assert (status(first), status(again)) == (("done", ""), ("replayed", ""))
    assert first.structured_content == again.structured_content == {"refund": 1}
    assert [one.text for one in first.content] == ['{"refund":1}']
    assert again.content[0] == first.content[0]
    assert json.loads(again.content[1].text) == envelope_of(again)
    assert envelope_of(again)["first_at"] == envelope_of(first)["receipt"]["at"]
    assert envelope_of(again)["key"] == "refund:1:turn_group:local"
    assert effects(tmp_path) == ["refund 1"]


def test_fastmcps_own_client_gets_the_data_of_a_replayed_call(ledger: Ledger, tmp_path: Path) -> None:
    async def it() -> list[Any]:
        async with FastClient(fastmcp_shop(tmp_path, ledger)) as client:
            found = [(await client.call_tool("refund", {"order_id": "1"})).data for _ in range(2)]
            with pytest.raises(ToolError, match="key-reused"):
                await client.call_tool("refund", {"order_id": "1", "amount": 2})
            return found

    assert asyncio.run(it()) == [{"refund": 1}] * 2


def test_the_program_calls_the_tools_of_its_own_server_as_local(ledger: Ledger, tmp_path: Path) -> None:
    async def it() -> list[Any]:
        server = fastmcp_shop(tmp_path, ledger, principal=lambda _context: "somebody")
        return [await server.call_tool("refund", {"order_id": "1"}) for _ in range(2)]

    results = asyncio.run(it())

    assert [status(one)[0] for one in results] == ["done", "replayed"]
    assert envelope_of(results[0])["key"] == "refund:1:turn_group:local"


def test_pure_and_unlisted_tools_are_not_recorded(ledger: Ledger, tmp_path: Path) -> None:
    async def steps(client: Client) -> list[Any]:
        return [await call(client, tool) for tool in ("price", "price", "unlisted", "unlisted")]

    results = play(ledger, tmp_path, steps)

    assert all("onceward" not in (one.meta or {}) for one in results)
    assert effects(tmp_path) == ["price", "price", "unlisted", "unlisted"]
    assert asyncio.run(ledger.scan()).entries == ()


def test_unlisted_tools_can_be_refused(ledger: Ledger, tmp_path: Path) -> None:
    async def steps(client: Client) -> Any:
        return await call(client, "unlisted")

    result = play(ledger, tmp_path, steps, unlisted="refuse")

    assert result.is_error
    assert status(result) == ("refused", "not-found")
    assert effects(tmp_path) == []


def test_content_of_any_kind_and_its_metadata_are_replayed(ledger: Ledger, tmp_path: Path) -> None:
    async def steps(client: Client) -> list[Any]:
        return [await call(client, "picture") for _ in range(2)]

    first, again = play(ledger, tmp_path, steps)

    assert isinstance(again.content[0], ImageContent)
    assert again.content[:2] == first.content
    assert again.meta["taken"] == "today"
    assert effects(tmp_path) == ["picture"]


def test_a_call_for_which_the_tool_asks_for_input_has_not_happened(ledger: Ledger, tmp_path: Path) -> None:
    """The client repeats the call with the input by itself."""

    async def steps(client: Client) -> list[Any]:
        return [await call(client, "ask") for _ in range(2)]

    first, again = play(ledger, tmp_path, steps)

    assert (status(first), status(again)) == (("done", ""), ("replayed", ""))
    assert first.content[0].text == again.content[0].text == "asked 1"
    assert effects(tmp_path) == ["ask"]


# Errors.


@pytest.mark.parametrize("how", ["raise", "tool error", "return"])
def test_an_error_of_an_irreversible_tool_leaves_the_call_in_doubt(ledger: Ledger, tmp_path: Path, how: str) -> None:
    async def steps(client: Client) -> list[Any]:
        return [await call(client, "fails", how=how) for _ in range(2)]

    first, again = play(ledger, tmp_path, steps)

    assert first.is_error
    assert again.is_error
    assert status(first) == status(again) == ("unknown", "in-doubt")
    assert "no answer" in first.content[0].text
    assert "no answer" in envelope_of(first)["detail"]
    assert json.loads(first.content[1].text) == envelope_of(first)
    assert effects(tmp_path) == ["fails 1"]


@pytest.mark.parametrize("how", ["own", "onceward"])
def test_an_error_that_proves_that_nothing_happened_lets_the_call_run_again(
    ledger: Ledger, tmp_path: Path, how: str
) -> None:
    """FastMCP hides the exception behind its own."""

    async def steps(client: Client) -> list[Any]:
        return [await call(client, "declined", how=one) for one in (how, "", "")]

    first, second, again = play(ledger, tmp_path, steps)

    assert [status(one)[0] for one in (first, second, again)] == ["refused", "done", "replayed"]
    assert envelope_of(first)["may_retry"]
    assert effects(tmp_path) == ["declined 1"]


def test_wrong_arguments_are_refused_by_fastmcp_and_leave_the_key_free(ledger: Ledger, tmp_path: Path) -> None:
    async def steps(client: Client) -> list[Any]:
        return [await call(client, "refund", amount="many"), await call(client, "refund", amount=1)]

    wrong, right = play(ledger, tmp_path, steps)

    assert wrong.is_error
    assert "amount" in wrong.content[0].text
    assert status(right) == ("done", "")


def test_a_tool_that_does_not_exist_is_reported_by_fastmcp(ledger: Ledger, tmp_path: Path) -> None:
    async def steps(client: Client) -> Any:
        return await call(client, "gone")

    result = play(ledger, tmp_path, steps)

    assert result.is_error
    assert result.content[0].text == "Unknown tool: 'gone'"
    assert not [entry for entry in asyncio.run(ledger.scan()).entries if entry.status is Status.IN_DOUBT]


def test_a_ledger_outage_is_reported_to_the_model(ledger: Ledger, tmp_path: Path) -> None:
    async def steps(client: Client) -> Any:
        ledger.close()
        return await call(client, "refund")

    result = play(ledger, tmp_path, steps)

    assert result.is_error
    assert status(result) == ("unknown", "store-closed")
    assert effects(tmp_path) == []


# Callers, keys and groups: `test_mcp.py` has the rules, which are the same.


def test_a_key_with_other_arguments_is_refused(ledger: Ledger, tmp_path: Path) -> None:
    async def steps(client: Client) -> list[Any]:
        return [await call(client, "refund", {"idempotency_key": "k"}, amount=amount) for amount in (1, 1, 2)]

    assert [status(one) for one in play(ledger, tmp_path, steps)] == [
        ("done", ""),
        ("replayed", ""),
        ("refused", "key-reused"),
    ]


def test_a_key_is_removed_from_the_arguments_unless_the_tool_declares_it(ledger: Ledger, tmp_path: Path) -> None:
    async def steps(client: Client) -> list[Any]:
        return [await call(client, tool, idempotency_key="k") for tool in ("refund", "put")]

    removed, left = play(ledger, tmp_path, steps)

    assert envelope_of(removed)["key"] == "refund:key:k"
    assert not removed.is_error
    assert left.content[0].text == "k"
    assert envelope_of(left)["key"] == "put:key:k"


def test_without_a_group_a_call_is_remembered_for_ten_minutes(
    ledger: Ledger, tmp_path: Path, clock: PinnedClock
) -> None:
    async def steps(client: Client) -> list[str]:
        found = []
        for seconds in (0, 599, 2):
            clock.advance(seconds)
            found.append(status(await call(client, "refund"))[0])
        found += [status(await call(client, "refund", {"turn_group_id": "g"}))[0] for _ in range(2)]
        return found

    assert play(ledger, tmp_path, steps) == ["done", "replayed", "done", "done", "replayed"]


@pytest.mark.parametrize("version", [NEWEST, OLDEST])
def test_a_retry_on_stdio_finds_the_call_of_an_earlier_server(tmp_path: Path, version: str) -> None:
    async def it() -> list[Any]:
        found = []
        for _ in range(2):
            async with connected(stdio_client(python_server(str(SHOP), str(tmp_path))), version) as client:
                found.append(await call(client, "refund"))
        return found

    first, again = asyncio.run(it())

    assert (status(first)[0], status(again)[0]) == ("done", "replayed")
    assert again.structured_content == first.structured_content
    assert effects(tmp_path) == ["refund 1"]


USERS = {
    "ada": {"client_id": "app", "sub": "ada", "iss": "i"},
    "bob": {"client_id": "app", "sub": "bob", "iss": "i"},
}


def test_two_users_of_one_client_over_http_share_nothing(tmp_path: Path) -> None:
    async def it() -> list[tuple[str, str]]:
        with ledger_of(tmp_path) as ledger:
            app = fastmcp_shop(tmp_path, ledger, auth=StaticTokenVerifier(USERS)).http_app()
            async with served(app) as url:
                found = []
                for token in ("ada", "bob", "ada"):
                    async with connected(over_http(url, authorization=f"Bearer {token}")) as client:
                        found.append(status(await call(client, "refund", {"idempotency_key": "the-same"})))
                return found

    assert asyncio.run(it()) == [("done", ""), ("done", ""), ("replayed", "")]


def test_an_anonymous_call_over_http_needs_a_key_or_a_session(tmp_path: Path) -> None:
    async def it() -> list[tuple[str, str]]:
        with ledger_of(tmp_path) as ledger:
            async with served(fastmcp_shop(tmp_path, ledger).http_app()) as url:
                async with connected(over_http(url)) as client:
                    refused = status(await call(client, "refund"))
                async with connected(over_http(url, idempotency_key='"k"')) as client:
                    keyed = status(await call(client, "refund"))
                async with connected(over_http(url), OLDEST) as client:
                    return [refused, keyed, *[status(await call(client, "refund")) for _ in range(2)]]

    assert asyncio.run(it()) == [("refused", "invalid-input"), ("done", ""), ("done", ""), ("replayed", "")]


@pytest.mark.parametrize(
    ("rules", "options"),
    [({"refund": {}}, {}), ({"refund": {"effect": "odd"}}, {}), (RULES, {"principal": ""}), (RULES, {"unlisted": "x"})],
    ids=str,
)
def test_invalid_options_are_refused_at_once(ledger: Ledger, rules: Any, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption):
        OnceMiddleware(ledger, rules, **options)
