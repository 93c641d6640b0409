"""Both transports behind one interface, so that every test runs on both."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from typing import Any

import httpx

from onceward.http.client import AsyncRetryTransport, RetryTransport

KINDS = ("blocking", "awaited")
# Far longer than a response takes on a busy machine.
TIMEOUT_SECONDS = 20.0
# Loaded once: it takes longer than most tests.
TLS = ssl.create_default_context()


class RetryingClient:
    """A client of one kind. Pauses take no time: they move the clock, and are remembered.

    `on_pause` is called in each pause. With `real_time` the clock is the machine's, and pauses do not move it.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.pauses: list[float] = []
        self.on_pause: Callable[[], object] = lambda: None
        self.real_time = False
        self._now = 1000.0

    def __call__(self, method: str, url: str, *, client: dict[str, Any] | None = None, **request: Any) -> Any:
        """One request by a client with these options; those of the transport are given as `retry=`."""
        retry = request.pop("retry", {})
        return self.during(lambda one: one.request(method, url, **request), client=client, **retry)

    def during(self, use: Callable[[Any], Any], *, client: dict[str, Any] | None = None, **retry: Any) -> Any:
        """Return the result of `use` with a client, whose methods may be awaitable or not."""
        options = {"timeout": TIMEOUT_SECONDS, **(client or {})}
        if self.kind == "blocking":
            with httpx.Client(transport=self.transport(**retry), **options) as blocking:
                return use(blocking)
        return asyncio.run(self._await(use, options, retry))

    async def _await(self, use: Callable[[Any], Awaitable[Any]], options: dict[str, Any], retry: dict[str, Any]) -> Any:
        async with httpx.AsyncClient(transport=self.transport(**retry), **options) as awaited:
            return await use(awaited)

    def transport(self, inner: Any = None, **retry: Any) -> Any:
        if self.kind == "blocking":
            inner = inner or httpx.HTTPTransport(verify=TLS)
            return RetryTransport(inner, clock=self.clock, sleep=self.sleep, **retry)
        inner = inner or httpx.AsyncHTTPTransport(verify=TLS)
        return AsyncRetryTransport(inner, clock=self.clock, sleep=self.asleep, **retry)

    def clock(self) -> float:
        return time.monotonic() if self.real_time else self._now

    def sleep(self, seconds: float) -> None:
        self._note(seconds)

    async def asleep(self, seconds: float) -> None:
        self._note(seconds)
        await asyncio.sleep(0)

    def _note(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self._now += seconds
        self.on_pause()

    def streamed(self, chunks: Iterable[bytes]) -> Iterator[bytes] | AsyncIterator[bytes]:
        """A body that can be read once."""
        return (chunk for chunk in chunks) if self.kind == "blocking" else _awaited(chunks)


async def _awaited(chunks: Iterable[bytes]) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk
