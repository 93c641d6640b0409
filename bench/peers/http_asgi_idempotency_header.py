"""asgi-idempotency-header: its middleware on Redis."""

from __future__ import annotations

from idempotency_header_middleware import IdempotencyHeaderMiddleware
from idempotency_header_middleware.backends import RedisBackend
from redis.asyncio import Redis

from bench.http.app import add_payments, fastapi_app
from bench.http.plain import App, Runs


def make(url: str, runs: Runs) -> App:
    app = add_payments(fastapi_app(runs), runs)
    app.add_middleware(IdempotencyHeaderMiddleware, backend=RedisBackend(Redis.from_url(url)))
    return app
