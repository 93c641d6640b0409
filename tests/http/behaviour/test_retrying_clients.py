"""Clients that retry on their own, with their own code, through a proxy that loses responses after the effect.

For every client: effects = distinct keys, and each call ends with the response to its own key.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import aiohttp
import httpx
import openai
import pytest
import requests
import stripe
import tenacity
import uvicorn
from aiohttp_retry import ExponentialRetry, RetryClient
from requests.adapters import HTTPAdapter
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from tests.http.behaviour.demo_server import new_name
from tests.http.behaviour.response_dropping_proxy import DROP, ResponseDroppingProxy
from urllib3.util import Retry

from onceward.http import IdempotencyMiddleware, idempotency
from onceward.http.client import RetryTransport
from onceward.store.memory import MemoryStore

FAULTS = (DROP, 409, 429, 500)
RETRIED = (409, 429, 500)
KEYS = 3


class Server:
    """An application behind the middleware, on a real socket, in a thread."""

    def __init__(self, **options: Any) -> None:
        self.effects: list[str] = []
        app = Starlette(routes=[Route("/{path:path}", self._create, methods=["POST"])])
        app.add_middleware(IdempotencyMiddleware, store=MemoryStore(), metrics=False, **options)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self._listening.getsockname()
        self._server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off"))
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._listening]})
        self._thread.start()

    async def _create(self, request: Request) -> Response:
        key = idempotency(request).key
        assert key is not None
        self.effects.append(key)
        return JSONResponse({"id": f"cus_{key}", "object": "customer"})

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join()


def with_stripe(url: str, keys: list[str]) -> list[str]:
    client = stripe.StripeClient("sk_test_1", base_addresses={"api": url}, max_network_retries=6)
    made = [client.v1.customers.create(params={"name": "Ann"}, options={"idempotency_key": key}) for key in keys]
    return [customer.id for customer in made]


def with_tenacity(url: str, keys: list[str]) -> list[str]:
    @tenacity.retry(
        retry=tenacity.retry_if_exception_type((httpx.TransportError, httpx.HTTPStatusError)),
        stop=tenacity.stop_after_attempt(8),
        wait=tenacity.wait_none(),
    )
    def post(key: str) -> str:
        response = httpx.post(f"{url}/v1/customers", json={"name": "Ann"}, headers={"Idempotency-Key": key})
        response.raise_for_status()
        return str(response.json()["id"])

    return [post(key) for key in keys]


def with_requests(url: str, keys: list[str]) -> list[str]:
    retry = Retry(total=8, status_forcelist=RETRIED, allowed_methods=None, backoff_factor=0)
    with requests.Session() as session:
        session.trust_env = False
        session.mount("http://", HTTPAdapter(max_retries=retry))
        responses = [
            session.post(f"{url}/v1/customers", json={"name": "Ann"}, headers={"Idempotency-Key": key}) for key in keys
        ]
    return [response.json()["id"] for response in responses]


def with_aiohttp_retry(url: str, keys: list[str]) -> list[str]:
    async def main() -> list[str]:
        options = ExponentialRetry(
            attempts=8, start_timeout=0.001, max_timeout=0.01, statuses=set(RETRIED), exceptions={aiohttp.ClientError}
        )
        found = []
        async with RetryClient(retry_options=options) as client:
            for key in keys:
                headers = {"Idempotency-Key": key}
                async with client.post(f"{url}/v1/customers", json={"name": "Ann"}, headers=headers) as response:
                    found.append((await response.json())["id"])
        return found

    return asyncio.run(main())


def with_onceward(url: str, keys: list[str]) -> list[str]:
    transport = RetryTransport(httpx.HTTPTransport(), first_pause_seconds=0.0, profile="stripe")
    with httpx.Client(transport=transport) as client:
        responses = [
            client.post(f"{url}/v1/customers", json={"name": "Ann"}, headers={"Idempotency-Key": key}) for key in keys
        ]
    return [response.json()["id"] for response in responses]


@pytest.fixture
def server() -> Iterator[Server]:
    with closing(Server(profile="stripe")) as running:
        yield running


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the pauses of Stripe's client; which requests it retries is its own decision."""
    monkeypatch.setattr(stripe.HTTPClient, "INITIAL_DELAY", 0.001)
    monkeypatch.setattr(stripe.HTTPClient, "MAX_DELAY", 0.002)


@pytest.mark.parametrize(
    "client",
    [with_stripe, with_tenacity, with_requests, with_aiohttp_retry, with_onceward],
    ids=lambda one: one.__name__,
)
def test_a_client_that_retries_has_one_effect_per_key(
    server: Server, client: Callable[[str, list[str]], list[str]]
) -> None:
    keys = [new_name() for _ in range(KEYS)]
    with closing(ResponseDroppingProxy(server.address, FAULTS)) as proxy:
        found = client(proxy.url, keys)

    assert found == [f"cus_{key}" for key in keys]
    assert server.effects == keys
    assert proxy.requests == KEYS * (len(FAULTS) + 1), "every fault made the client try again"


def test_stripes_client_recognises_a_reused_key_and_does_not_retry_it(server: Server) -> None:
    client = stripe.StripeClient(
        "sk_test_1", base_addresses={"api": f"http://127.0.0.1:{server.address[1]}"}, max_network_retries=3
    )
    key = new_name()
    client.v1.customers.create(params={"name": "Ann"}, options={"idempotency_key": key})

    with pytest.raises(stripe.IdempotencyError):
        client.v1.customers.create(params={"name": "Bob"}, options={"idempotency_key": key})

    assert server.effects == [key]


# The table of clients in the guide: what each of them does with 409 and Retry-After by default.


def plain_requests(url: str) -> int:
    return requests.post(url, headers={"Idempotency-Key": "k"}, timeout=10).status_code


def plain_httpx(url: str) -> int:
    return httpx.post(url, headers={"Idempotency-Key": "k"}, trust_env=False).status_code


def urllib3_retry(url: str) -> int:
    with requests.Session() as session:
        session.mount("http://", HTTPAdapter(max_retries=Retry(3)))
        return session.post(url, headers={"Idempotency-Key": "k"}, timeout=10).status_code


def plain_aiohttp_retry(url: str) -> int:
    async def main() -> int:
        async with (
            RetryClient(retry_options=ExponentialRetry(start_timeout=0.001)) as client,
            client.post(url, headers={"Idempotency-Key": "k"}) as response,
        ):
            return int(response.status)

    return asyncio.run(main())


def plain_stripe(url: str) -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stripe, "api_base", url)
        stripe.Customer.create(name="Ann", api_key="sk_test_1", idempotency_key="k")
    return 200


def stripe_client_without_retries(url: str) -> int:
    client = stripe.StripeClient("sk_test_1", base_addresses={"api": url})
    with pytest.raises(stripe.APIError) as raised:
        client.v1.customers.create(params={"name": "Ann"}, options={"idempotency_key": "k"})
    return raised.value.http_status or 0


def plain_openai(url: str) -> int:
    client = openai.OpenAI(api_key="k", base_url=url)
    client.post("/x", cast_to=object, options={"headers": {"Idempotency-Key": "k"}})
    return 200


def onceward_client(url: str) -> int:
    with httpx.Client(transport=RetryTransport(first_pause_seconds=0.0)) as client:
        return client.post(url, headers={"Idempotency-Key": "k"}).status_code


@pytest.mark.parametrize(
    ("client", "status"),
    [
        (plain_httpx, 409),
        (plain_requests, 409),
        (urllib3_retry, 409),
        (plain_aiohttp_retry, 409),
        (plain_stripe, 200),
        (stripe_client_without_retries, 409),
        (plain_openai, 200),
        (onceward_client, 200),
    ],
    ids=lambda one: getattr(one, "__name__", one),
)
def test_a_client_handles_409_by_default_as_the_guide_says(
    server: Server, client: Callable[[str], int], status: int
) -> None:
    with closing(ResponseDroppingProxy(server.address, (409,), hint=False)) as proxy:
        assert client(proxy.url) == status

    assert proxy.requests == (1 if status == 409 else 2)
