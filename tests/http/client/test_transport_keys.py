from __future__ import annotations

import asyncio
import gc
from typing import Any

import httpx
import pytest
from tests.http.client.transports import RetryingClient
from tests.servers.scripted_http import ScriptedResponse, scripted

from onceward.http.client import AsyncRetryTransport, RetryTransport


@pytest.mark.parametrize("name", ["Idempotency-Key", "X-Idempotency-Key", "idempotency-key"])
def test_the_callers_own_key_is_kept(call: RetryingClient, name: str) -> None:
    with scripted(ScriptedResponse(503), ScriptedResponse()) as server:
        response = call("POST", server.url, headers={name: "mine"})

    assert response.status_code == 201
    carried = [{key: value for key, value in seen.headers.items() if "idempotency" in key} for seen in server.seen]
    assert carried == [{name.lower(): "mine"}] * 2


def test_the_key_can_be_read_from_the_response(call: RetryingClient) -> None:
    with scripted(ScriptedResponse()) as server:
        response = call("POST", server.url)

    assert [response.request.headers["Idempotency-Key"]] == server.keys


def test_a_request_resent_by_hand_keeps_its_key(call: RetryingClient) -> None:
    request = httpx.Request("POST", "http://127.0.0.1/", content=b"x")
    with scripted(ScriptedResponse(500), ScriptedResponse()) as server:
        request.url = httpx.URL(server.url)
        call.during(lambda client: client.send(request), tries=1)
        call.during(lambda client: client.send(request))

    first, second = server.keys
    assert first is not None
    assert first == second


@pytest.mark.parametrize("status", [307, 308])
def test_a_redirect_that_keeps_the_method_keeps_the_key(call: RetryingClient, status: int) -> None:
    with (
        scripted(ScriptedResponse(503), ScriptedResponse(201)) as target,
        scripted(ScriptedResponse(503), ScriptedResponse(status, {"Location": f"{target.url}/moved"})) as server,
    ):
        body = call.streamed([b"or", b"der"])
        response = call("POST", f"{server.url}/orders", content=body, client={"follow_redirects": True})

    assert response.status_code == 201
    assert [(seen.path, seen.body) for seen in target.seen] == [("/moved", b"order")] * 2
    assert len({*server.keys, *target.keys}) == 1
    assert None not in server.keys


@pytest.mark.parametrize("status", [301, 302, 303])
def test_a_redirect_that_becomes_a_get_drops_the_key(call: RetryingClient, status: int) -> None:
    steps = [ScriptedResponse(status, {"Location": "/order/42"}), ScriptedResponse(500), ScriptedResponse(200)]
    with scripted(*steps) as server:
        response = call("POST", server.url, content=b"order", client={"follow_redirects": True})

    assert response.status_code == 200
    assert [seen.method for seen in server.seen] == ["POST", "GET", "GET"]
    assert [key is not None for key in server.keys] == [True, False, False]


def test_an_authentication_flow_that_repeats_the_request_keeps_the_key(call: RetryingClient) -> None:
    challenge = {"WWW-Authenticate": 'Digest realm="r", nonce="n", algorithm=SHA-256, qop="auth"'}
    with scripted(ScriptedResponse(401, challenge), ScriptedResponse(503), ScriptedResponse(201)) as server:
        auth = httpx.DigestAuth("ada", "secret")
        response = call("POST", server.url, content=b"order", auth=auth)

    assert response.status_code == 201
    assert ["authorization" in seen.headers for seen in server.seen] == [False, True, True]
    assert len(set(server.keys)) == 1


class Renewing(httpx.Auth):
    """Fetches a token with a request of its own."""

    requires_response_body = True

    def __init__(self, url: str) -> None:
        self._url = url

    def auth_flow(self, request: httpx.Request) -> Any:
        token = yield httpx.Request("POST", f"{self._url}/token")
        request.headers["Authorization"] = f"Bearer {token.text}"
        yield request


def test_a_request_for_a_token_has_its_own_key(call: RetryingClient) -> None:
    with scripted(
        ScriptedResponse(503), ScriptedResponse(200, body=b"t1"), ScriptedResponse(503), ScriptedResponse(201)
    ) as server:
        call("POST", f"{server.url}/order", auth=Renewing(server.url))

    assert [seen.path for seen in server.seen] == ["/token", "/token", "/order", "/order"]
    assert server.seen[3].headers["authorization"] == "Bearer t1"
    keys = server.keys
    assert keys[0] == keys[1]
    assert keys[2] == keys[3]
    assert keys[0] != keys[2]


def test_keys_are_shortened_in_the_log(call: RetryingClient, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "onceward"), scripted(ScriptedResponse(503), ScriptedResponse()) as server:
        call("POST", f"{server.url}/orders?token=secret")

    (record,) = [record.getMessage() for record in caplog.records if record.name.startswith("onceward")]
    key = server.seen[0].headers["idempotency-key"]
    assert key[:20] + "..." in record
    assert key not in record
    assert "secret" not in record
    assert "/orders" in record


def test_a_closed_client_closes_its_connections() -> None:
    with scripted(ScriptedResponse()) as server:
        client = httpx.Client(transport=RetryTransport())
        client.post(server.url)
        client.close()

        async def awaited() -> None:
            client = httpx.AsyncClient(transport=AsyncRetryTransport())
            await client.post(server.url)
            await client.aclose()

        asyncio.run(awaited())
    gc.collect()  # A connection left open would warn, and a warning fails the test.

    assert len(server.seen) == 2
