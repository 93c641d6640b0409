"""A whole hub in the test's own process: its lifespan, and a client without a socket."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Iterator
from typing import Any, TypeVar

import httpx

from onceward.http.asgi_types import App, Message
from onceward.hub.app import create_app
from onceward.hub.config.config import Config

T = TypeVar("T")


class Client:
    """A client that sends one request after the other."""

    def __init__(self, runner: asyncio.Runner, app: App) -> None:
        self._runner = runner
        transport = httpx.ASGITransport(app, client=("127.0.0.1", 50_000))
        self.client = httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8787")

    def run(self, requests: Coroutine[Any, Any, T]) -> T:
        """Run requests that are made with `client`, also concurrently."""
        return self._runner.run(requests)

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        return self.run(self.client.request(method, path, **options))

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.request("GET", path, **options)

    def post(self, path: str, **options: Any) -> httpx.Response:
        return self.request("POST", path, **options)

    def put(self, path: str, **options: Any) -> httpx.Response:
        return self.request("PUT", path, **options)

    def close(self) -> None:
        self.run(self.client.aclose())


@contextlib.contextmanager
def in_process_hub(config: Config) -> Iterator[Client]:
    """Its database must have been migrated."""
    with in_process_app(create_app(config)) as client:
        yield client


@contextlib.contextmanager
def in_process_app(app: App) -> Iterator[Client]:
    """An application between its startup and its shutdown."""
    with asyncio.Runner() as runner:
        to_app: asyncio.Queue[Message] = asyncio.Queue()
        from_app: asyncio.Queue[Message] = asyncio.Queue()

        async def send_lifespan(kind: str) -> None:
            await to_app.put({"type": f"lifespan.{kind}"})
            assert (await from_app.get())["type"] == f"lifespan.{kind}.complete"

        async def start() -> asyncio.Future[None]:
            scope = {"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}
            living = asyncio.ensure_future(app(scope, to_app.get, from_app.put))
            await send_lifespan("startup")
            return living

        async def stop() -> None:
            await send_lifespan("shutdown")
            await living

        living = runner.run(start())
        with contextlib.closing(Client(runner, app)) as client:
            yield client
        runner.run(stop())
