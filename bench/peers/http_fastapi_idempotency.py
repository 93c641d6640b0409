"""fastapi-idempotency: its middleware on SQLite, through Tortoise ORM, which sets the file to WAL."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from fastapi_idempotency import IdempotencyMiddleware
from fastapi_idempotency.stores import tortoise as store
from tortoise.contrib.fastapi import RegisterTortoise

from bench.http.app import add_payments, fastapi_app
from bench.http.plain import App, Runs


def make(url: str, runs: Runs) -> App:
    @asynccontextmanager
    async def live(app: FastAPI) -> AsyncIterator[None]:
        path = url.removeprefix("sqlite:///")
        async with RegisterTortoise(
            app, db_url=f"sqlite://{path}", modules={"models": [store.__name__]}, generate_schemas=True
        ):
            yield

    app = add_payments(fastapi_app(runs, lifespan=live), runs)
    app.add_middleware(IdempotencyMiddleware, store=store.TortoiseStore())
    return app
