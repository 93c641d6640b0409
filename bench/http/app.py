"""Application of every contestant: one JSON route, as FastAPI users write it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from fastapi import FastAPI
from pydantic import BaseModel

from bench.http.plain import Runs

Handler: TypeAlias = Callable[..., Any]


class Payment(BaseModel):
    amount: int
    currency: str


def fastapi_app(runs: Runs, **options: Any) -> FastAPI:
    """Return an application whose only route is `/runs`, which returns the number of runs of the handler."""
    app = FastAPI(**options)

    @app.get("/runs")
    async def ran() -> int:
        return runs.count

    return app


def add_payments(app: FastAPI, runs: Runs, decorate: Callable[[Handler], Handler] = lambda handler: handler) -> FastAPI:
    """Add the measured route."""

    @app.post("/payments", status_code=201)
    @decorate
    async def pay(payment: Payment) -> dict[str, object]:  # noqa: ARG001  # as every real handler has
        return runs()

    return app
