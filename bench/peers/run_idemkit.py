"""idemkit: its decorator for methods with an explicit key, awaited by tasks of one event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from idemkit import InMemoryBackend, MethodConfig, PostgresBackend, RedisBackend, idempotent
from idemkit.backends.postgres import _schema_sql

from bench.load import Effects, with_tasks
from bench.peers.speak import Peer, serve


def make(url: str) -> Peer:
    effects = Effects()
    # One loop for all calls: the pools of its backends belong to the loop that used them first.
    loop = asyncio.new_event_loop()
    backend = loop.run_until_complete(_backend(url))

    @idempotent(backend=backend, config=MethodConfig(scope=lambda: "bench", validation_fingerprint=_fingerprint))
    async def pay(amount: int, currency: str) -> dict[str, object]:  # noqa: ARG001  # as every real effect has
        return effects()

    async def keyed(key: str) -> object:
        return await pay(amount=10, currency="EUR", idempotency_key=key)

    def drive(callers: int, seconds: float, name: Callable[[int, int], str]) -> Any:
        return loop.run_until_complete(with_tasks(keyed, callers, seconds, name))

    def close() -> None:
        if hasattr(backend, "aclose"):
            loop.run_until_complete(backend.aclose())
        loop.close()

    return Peer("idemkit", lambda key: loop.run_until_complete(keyed(key)), drive, effects, close)


def _fingerprint(arguments: Mapping[str, object]) -> bytes:
    return repr(sorted(arguments.items())).encode()


async def _backend(url: str) -> Any:
    if url.startswith("memory:"):
        return InMemoryBackend()
    if url.startswith("redis:"):
        return RedisBackend.from_url(url)
    return await _postgres(url)


async def _postgres(url: str) -> Awaitable[Any]:
    import asyncpg  # noqa: PLC0415  # one store's driver

    connection = await asyncpg.connect(url)
    await connection.execute(_schema_sql("idemkit_records"))
    await connection.close()
    return PostgresBackend.from_url(url)


if __name__ == "__main__":
    serve(make)
