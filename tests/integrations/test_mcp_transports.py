"""The real client of the `mcp` package against real servers: a process on stdio, a socket with HTTP."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, MCPError
from mcp.server.auth.provider import AccessToken
from mcp.server.auth.settings import AuthSettings
from pydantic import AnyHttpUrl
from tests.integrations.mcp_clients import NEWEST, OLDEST, VERSIONS, connected, over_http, over_sse, over_stdio, served
from tests.integrations.mcp_shop import effects, ledger_of, shop_server, shop_with_others
from tests.waiting import soon

versions = pytest.mark.parametrize("version", [NEWEST, OLDEST])


async def call(client: Client, tool: str = "refund", key: str | None = None, **arguments: Any) -> dict[str, Any]:
    meta: Any = None if key is None else {"idempotency_key": key}
    result = await client.call_tool(tool, {"order_id": "1", **arguments}, meta=meta)
    found: dict[str, Any] = result.structured_content
    return found


def status_and_key(envelope: dict[str, Any]) -> tuple[str, str]:
    return envelope["status"], envelope["key"]


@asynccontextmanager
async def http_shop(folder: Path, auth: dict[str, Any] | None = None, **options: Any) -> AsyncIterator[str]:
    with ledger_of(folder) as ledger:
        app = shop_server(folder, ledger, **options).streamable_http_app(**auth or {})
        async with served(app) as url:
            yield url


@versions
def test_a_retry_on_stdio_finds_the_call_of_an_earlier_server(tmp_path: Path, version: str) -> None:
    """The default client has no session and names no group: the caller is the group, also for the next process."""

    async def it() -> list[dict[str, Any]]:
        found = []
        for _ in range(2):
            async with connected(over_stdio(tmp_path), version) as client:
                found.append(await call(client))
        return found

    first, again = asyncio.run(it())

    assert status_and_key(first) == ("done", "refund:order:1:turn_group:local")
    assert status_and_key(again) == ("replayed", first["key"])
    assert (again["result"], again["first_at"]) == (first["result"], first["receipt"]["at"])
    assert effects(tmp_path) == ["refund 1"]


@versions
def test_a_key_on_stdio_replaces_the_generated_key(tmp_path: Path, version: str) -> None:
    async def it() -> list[dict[str, Any]]:
        async with connected(over_stdio(tmp_path), version) as client:
            return [
                await call(client, key="k1", amount=5),
                await call(client, key="k1", amount=5),
                await call(client, key="k1", amount=6),
                await call(client, key="k2", amount=5),
            ]

    first, again, other, second = asyncio.run(it())

    assert [status_and_key(one) for one in (first, again)] == [("done", "refund:key:k1"), ("replayed", "refund:key:k1")]
    assert (other["status"], other["code"], other["may_retry"]) == ("refused", "key-reused", False)
    assert status_and_key(second) == ("done", "refund:key:k2")
    assert effects(tmp_path) == ["refund 1", "refund 1"]


@pytest.mark.parametrize("version", [NEWEST, OLDEST])
def test_the_call_of_a_server_that_was_killed_is_in_doubt(tmp_path: Path, version: str) -> None:
    async def it() -> dict[str, Any]:
        async with connected(over_stdio(tmp_path), version) as client:
            asking = asyncio.create_task(call(client, "hang", "k"))
            line = await soon(lambda: effects(tmp_path))
            os.kill(int(line[0].split()[-1]), signal.SIGKILL)
            with pytest.raises(MCPError, match="closed"):
                await asking
        async with connected(over_stdio(tmp_path), version) as client:
            return await call(client, "hang", "k")

    envelope = asyncio.run(it())

    assert (envelope["status"], envelope["code"], envelope["may_retry"]) == ("unknown", "in-doubt", False)
    assert envelope["how_to_check"].startswith("Look into the bank's list.")
    assert len(effects(tmp_path)) == 1


@versions
def test_a_key_over_http_replaces_the_generated_key(tmp_path: Path, version: str) -> None:
    async def it() -> list[dict[str, Any]]:
        async with http_shop(tmp_path) as url:
            found = []
            for amount in (5, 5, 6):
                async with connected(over_http(url), version) as client:
                    found.append(await call(client, key="k1", amount=amount))
            return found

    first, again, other = asyncio.run(it())

    assert [status_and_key(one) for one in (first, again)] == [("done", "refund:key:k1"), ("replayed", "refund:key:k1")]
    assert (other["status"], other["code"]) == ("refused", "key-reused")
    assert effects(tmp_path) == ["refund 1"]


def test_an_anonymous_call_over_http_without_a_group_is_refused(tmp_path: Path) -> None:
    async def it() -> list[dict[str, Any]]:
        async with http_shop(tmp_path) as url, connected(over_http(url)) as client:
            return [await call(client), await call(client, "price")]

    refused, price = asyncio.run(it())

    assert (refused["status"], refused["code"]) == ("refused", "invalid-input")
    assert "_meta.idempotency_key" in refused["detail"]
    assert price["result"] == 49
    assert effects(tmp_path) == []


def test_a_server_may_accept_anonymous_calls_without_a_group(tmp_path: Path) -> None:
    async def it() -> list[tuple[str, str]]:
        async with http_shop(tmp_path, require_group=False) as url:
            found = []
            for _ in range(2):
                async with connected(over_http(url)) as client:
                    found.append(status_and_key(await call(client)))
            return found

    key = "refund:order:1:turn_group:anonymous"
    assert asyncio.run(it()) == [("done", key), ("replayed", key)]


@pytest.mark.parametrize("version", VERSIONS[1:])
def test_the_session_is_the_group_if_the_protocol_has_sessions(tmp_path: Path, version: str) -> None:
    async def it() -> list[str]:
        async with http_shop(tmp_path) as url:
            found = []
            for _ in range(2):
                async with connected(over_http(url), version) as client:
                    found += [(await call(client))["status"] for _ in range(2)]
            return found

    assert asyncio.run(it()) == ["done", "replayed", "done", "replayed"]


def test_the_session_of_the_oldest_http_transport_is_a_group(tmp_path: Path) -> None:
    async def it() -> list[str]:
        with ledger_of(tmp_path) as ledger:
            server = shop_with_others(tmp_path, ledger)
            async with served(server.sse_app()) as url:
                found = []
                for _ in range(2):
                    async with connected(over_sse(url), OLDEST) as client:
                        found += [(await call(client))["status"] for _ in range(2)]
                return found

    assert asyncio.run(it()) == ["done", "replayed", "done", "replayed"]


def test_an_unknown_session_is_not_a_group(tmp_path: Path) -> None:
    async def it() -> str:
        async with http_shop(tmp_path) as url, connected(over_http(url, mcp_session_id="made-up")) as client:
            return str((await call(client))["status"])

    assert asyncio.run(it()) == "refused"
    assert effects(tmp_path) == []


@pytest.mark.parametrize("version", [NEWEST, OLDEST])
def test_the_http_header_is_a_key(tmp_path: Path, version: str) -> None:
    async def it() -> list[dict[str, Any]]:
        async with http_shop(tmp_path) as url, connected(over_http(url, idempotency_key='"k1"'), version) as client:
            return [await call(client), await call(client, key="k1"), await call(client, key="k2")]

    first, again, torn = asyncio.run(it())

    assert [status_and_key(one) for one in (first, again)] == [("done", "refund:key:k1"), ("replayed", "refund:key:k1")]
    assert (torn["status"], torn["code"]) == ("refused", "invalid-input")
    assert effects(tmp_path) == ["refund 1"]


@pytest.mark.parametrize("version", [NEWEST, OLDEST])
def test_concurrent_duplicates_have_one_effect(tmp_path: Path, version: str) -> None:
    async def it() -> list[dict[str, Any]]:
        async with http_shop(tmp_path) as url:

            async def one() -> dict[str, Any]:
                async with connected(over_http(url), version) as client:
                    return await call(client, key="k")

            return list(await asyncio.gather(*(one() for _ in range(5))))

    envelopes = asyncio.run(it())

    assert sorted(one["status"] for one in envelopes) == ["done"] + ["replayed"] * 4
    assert len({str(one["receipt"]) for one in envelopes}) == 1
    assert effects(tmp_path) == ["refund 1"]


class Tokens:
    """Each token is `client/issuer/subject`, or `client/issuer//subject` if only the claims have the subject."""

    async def verify_token(self, token: str) -> AccessToken | None:
        client, issuer, subject, *claimed = token.split("/")
        claims = {"iss": issuer, **({"sub": claimed[0]} if claimed else {})} if issuer else None
        return AccessToken(token=token, client_id=client, scopes=[], subject=subject or None, claims=claims)


def auth_options() -> dict[str, Any]:
    settings = AuthSettings(issuer_url=AnyHttpUrl("https://login.example"), resource_server_url=None)
    return {"auth": settings, "token_verifier": Tokens()}


@pytest.mark.parametrize("version", [NEWEST, OLDEST])
def test_callers_with_equal_keys_do_not_see_each_others_results(tmp_path: Path, version: str) -> None:
    callers = ["app/i/ada", "app/i/bob", "app/j/ada", "web/i/ada", "app//", "app/i/ada"]

    async def it() -> tuple[list[dict[str, Any]], set[str]]:
        with ledger_of(tmp_path) as ledger:
            server = shop_server(tmp_path, ledger, principal="everybody")
            async with served(server.streamable_http_app(**auth_options())) as url:
                found = []
                for token in callers:
                    async with connected(over_http(url, authorization=f"Bearer {token}"), version) as client:
                        found.append(await call(client, key="the-same"))
            return found, {entry.scope for entry in (await ledger.scan()).entries}

    envelopes, scopes = asyncio.run(it())

    assert [one["status"] for one in envelopes] == ["done"] * 5 + ["replayed"]
    assert [one["result"]["refund"] for one in envelopes] == [1, 2, 3, 4, 5, 1]
    assert len(scopes) == 5
    assert not any("everybody" in scope for scope in scopes)
    assert any('["app","i","ada"]' in scope for scope in scopes)


def test_two_users_are_two_callers_if_only_the_claims_of_their_tokens_differ(tmp_path: Path) -> None:
    async def it() -> list[str]:
        async with http_shop(tmp_path, auth_options()) as url:
            found = []
            for token in ("app/i//ada", "app/i//bob", "app/i/ada"):
                async with connected(over_http(url, authorization=f"Bearer {token}")) as client:
                    found.append((await call(client, key="the-same"))["status"])
            return found

    assert asyncio.run(it()) == ["done", "done", "replayed"]


def test_a_caller_with_a_token_is_a_group(tmp_path: Path) -> None:
    async def it() -> list[str]:
        async with http_shop(tmp_path, auth_options()) as url:
            found = []
            for token in ("app/i/ada", "app/i/ada", "app/i/bob"):
                async with connected(over_http(url, authorization=f"Bearer {token}")) as client:
                    found.append((await call(client))["status"])
            return found

    assert asyncio.run(it()) == ["done", "replayed", "done"]


@pytest.mark.parametrize("version", [NEWEST, OLDEST])
def test_a_toolbox_is_an_extension_of_a_server_with_other_tools(tmp_path: Path, version: str) -> None:
    async def it() -> tuple[list[str], list[str], Any]:
        with ledger_of(tmp_path) as ledger:
            server = shop_with_others(tmp_path, ledger)
            async with served(server.streamable_http_app()) as url, connected(over_http(url), version) as client:
                names = [tool.name for tool in (await client.list_tools()).tools]
                greeted = (await client.call_tool("greet", {"name": "Ada"})).content[0]
                statuses = [(await call(client, key="k", amount=amount))["status"] for amount in (1, 1, 2)]
                return names, statuses, greeted

    names, statuses, greeted = asyncio.run(it())

    assert names == ["refund", "hang", "price", "greet"]
    assert greeted.text == "Hello, Ada"
    assert statuses == ["done", "replayed", "refused"]
    assert effects(tmp_path) == ["refund 1"]
