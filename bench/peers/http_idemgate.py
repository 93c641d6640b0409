"""idemgate: its route class and decorator on Redis."""

from __future__ import annotations

from idemgate import IdempotencyRoute, idempotent
from idemgate.redis_store import RedisAcquirer
from redis.asyncio import Redis

from bench.http.app import add_payments, fastapi_app
from bench.http.plain import App, Runs


def make(url: str, runs: Runs) -> App:
    app = fastapi_app(runs)
    app.router.route_class = IdempotencyRoute
    app.state.idempotency_store = RedisAcquirer(Redis.from_url(url))
    return add_payments(app, runs, idempotent(ttl=3600))
