"""AWS Lambda Powertools: its decorator for functions, on Redis.

It blocks the event loop for two commands. In a route that runs in threads it was even slower, and requests without a key
would be slower too. Its check that a retry has the same payload is off: on Redis it refuses every replay, because the
record of a completed call is written without the hash of the payload.
"""

from __future__ import annotations

from typing import Annotated

from aws_lambda_powertools.utilities.idempotency import IdempotencyConfig, idempotent_function
from aws_lambda_powertools.utilities.idempotency.persistence.cache import CachePersistenceLayer
from fastapi import Header

from bench.http.app import Payment, fastapi_app
from bench.http.plain import App, Runs


def make(url: str, runs: Runs) -> App:
    app = fastapi_app(runs)
    config = IdempotencyConfig(event_key_jmespath="key")

    @idempotent_function(
        data_keyword_argument="request", config=config, persistence_store=CachePersistenceLayer(url=url)
    )
    def pay_once(request: dict[str, object]) -> dict[str, object]:  # noqa: ARG001  # the decorator reads the key from it
        return runs()

    @app.post("/payments", status_code=201)
    async def pay(payment: Payment, idempotency_key: Annotated[str | None, Header()] = None) -> dict[str, object]:
        if idempotency_key is None:
            return runs()
        result: dict[str, object] = pay_once(request={"key": idempotency_key, "payment": payment.model_dump()})
        return result

    return app
