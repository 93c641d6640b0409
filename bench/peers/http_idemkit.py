"""idemkit: its ASGI middleware on Redis, with callers separated by their token, as its manual requires."""

from __future__ import annotations

from typing import Any

from idemkit import HttpConfig, IdempotencyMiddleware, RedisBackend

from bench.http.app import add_payments, fastapi_app
from bench.http.plain import App, Runs


def make(url: str, runs: Runs) -> App:
    app = add_payments(fastapi_app(runs), runs)
    app.add_middleware(IdempotencyMiddleware, backend=RedisBackend.from_url(url), config=HttpConfig(scope=_caller))
    return app


def _caller(request: Any) -> str:
    token: str = request.headers.get("authorization", "anonymous")
    return token
