"""One keyed payment through one library, in a process of its own.

    python -m bench.battery.call LIBRARY STORE ACCIDENT KEY AMOUNT FILE

The effect appends a line to the file, and then has the accident. The process prints the result or the class of the error.
Each library is set up as its manual says for a payment, with a lease of two seconds where it has one.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from decimal import Decimal
from typing import Any

LEASE_SECONDS = 2.0
# The length of a payment in a race, so that the others come while it runs.
SLOW_SECONDS = 1.5

Pay = Callable[[int], Any]
Call = Callable[[str, int], Any]


def payment(accident: str, path: str) -> Pay:
    """Return the effect: it pays, which is a line in the file, and then something happens."""

    def pay(amount: int) -> Any:
        with open(path, "a") as file:  # noqa: PTH123  # as plain as the effect is
            file.write(f"{amount}\n")
        match accident:
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "raise":
                raise ConnectionResetError("the provider closed the connection after it had paid")
            case "slow":
                time.sleep(SLOW_SECONDS)
            case "unstorable":
                return {"paid": amount, "connection": object()}
            case "decimal":
                return {"paid": Decimal(amount) / 10}
        return {"paid": amount}

    return pay


def onceward(store: str, pay: Pay) -> Call:
    from onceward import open_ledger  # noqa: PLC0415  # only the library that is called

    ledger = open_ledger(store)

    @ledger.once(key="pay:{key}", effect="irreversible", lease_seconds=LEASE_SECONDS)
    def paying(key: str, amount: int) -> Any:  # noqa: ARG001  # the key
        return pay(amount)

    return paying


def idemkit(store: str, pay: Pay) -> Call:
    from idemkit import MethodConfig, RedisBackend, idempotent  # noqa: PLC0415

    def call(key: str, amount: int) -> Any:
        async def once() -> Any:
            config = MethodConfig(
                scope=lambda _: "battery",
                validation_fingerprint=lambda arguments: json.dumps(dict(arguments), sort_keys=True).encode(),
                lease_ttl_seconds=LEASE_SECONDS,
            )

            @idempotent(backend=RedisBackend.from_url(store), config=config)
            async def paying(amount: int) -> Any:
                return await asyncio.to_thread(pay, amount)

            return await paying(amount=amount, idempotency_key=key)

        return asyncio.run(once())

    return call


def powertools(store: str, pay: Pay) -> Call:
    from aws_lambda_powertools.utilities.idempotency import IdempotencyConfig, idempotent_function  # noqa: PLC0415
    from aws_lambda_powertools.utilities.idempotency.persistence.cache import CachePersistenceLayer  # noqa: PLC0415

    @idempotent_function(
        data_keyword_argument="request",
        config=IdempotencyConfig(event_key_jmespath="key"),
        persistence_store=CachePersistenceLayer(url=store),
    )
    def paying(request: dict[str, Any]) -> Any:
        return pay(request["amount"])

    return lambda key, amount: paying(request={"key": key, "amount": amount})


def asgi_idempotency_header(store: str, pay: Pay) -> Call:
    import httpx  # noqa: PLC0415
    from idempotency_header_middleware import IdempotencyHeaderMiddleware  # noqa: PLC0415
    from idempotency_header_middleware.backends import RedisBackend  # noqa: PLC0415
    from redis.asyncio import Redis  # noqa: PLC0415
    from starlette.applications import Starlette  # noqa: PLC0415
    from starlette.requests import Request  # noqa: PLC0415
    from starlette.responses import JSONResponse  # noqa: PLC0415
    from starlette.routing import Route  # noqa: PLC0415

    async def handler(request: Request) -> JSONResponse:
        return JSONResponse(await asyncio.to_thread(pay, (await request.json())["amount"]))

    def call(key: str, amount: int) -> Any:
        async def once() -> Any:
            app = Starlette(routes=[Route("/payments", handler, methods=["POST"])])
            app.add_middleware(IdempotencyHeaderMiddleware, backend=RedisBackend(Redis.from_url(store)))
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
                response = await client.post("/payments", json={"amount": amount}, headers={"Idempotency-Key": key})
                return response.json() if response.is_success else f"HTTP {response.status_code}"

        return asyncio.run(once())

    return call


def agent_once(store: str, pay: Pay) -> Call:
    from once import Once  # noqa: PLC0415

    once = Once(store.removeprefix("sqlite:///"), wait=5.0)

    @once.tool
    async def paying(key: str, amount: int) -> Any:  # noqa: ARG001  # the key
        return await asyncio.to_thread(pay, amount)

    def call(key: str, amount: int) -> Any:
        async def run() -> Any:
            with once.scope("battery"):
                return await paying(key, amount)

        return asyncio.run(run())

    return call


def call4agents(store: str, pay: Pay) -> Call:
    import call4agents  # noqa: PLC0415

    call4agents.init(store.removeprefix("sqlite:///"), secret=b"a secret for the battery only")

    @call4agents.effect(name="pay", wait=5.0)
    def paying(amount: int) -> Any:
        return pay(amount)

    def call(key: str, amount: int) -> Any:
        with call4agents.run("battery"):
            return paying(amount, c4a_key=key)

    return call


def dbos(store: str, pay: Pay) -> Call:
    from dbos import DBOS, SetWorkflowID  # noqa: PLC0415

    executor = {"executor_id": str(os.getpid())} if sys.argv[3] == "slow" else {}
    DBOS(config={"name": "battery", "system_database_url": store, "log_level": "ERROR", **executor})

    @DBOS.step()
    def step(amount: int) -> Any:
        return pay(amount)

    @DBOS.workflow()
    def paying(amount: int) -> Any:
        return step(amount)

    DBOS.launch()

    def call(key: str, amount: int) -> Any:
        with SetWorkflowID(key):
            return paying(amount)

    return call


LIBRARIES: dict[str, Callable[[str, Pay], Call]] = {
    "Onceward": onceward,
    "idemkit": idemkit,
    "Powertools": powertools,
    "asgi-idempotency-header": asgi_idempotency_header,
    "agent-once": agent_once,
    "call4agents": call4agents,
    "DBOS": dbos,
}


def main() -> None:
    library, store, accident, key, amount, path = sys.argv[1:]
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output of a library does not mix with the line below
    try:
        call = LIBRARIES[library](store, payment(accident, path))
        if accident == "slow":  # a race: all callers are ready before the first one starts
            print("ready", file=output, flush=True)
            sys.stdin.readline()
        result = call(key, int(amount))
        line = {"result": result if isinstance(result, str) else repr(result)}
    except BaseException as error:  # noqa: BLE001  # this is what the caller gets
        line = {"error": type(error).__name__}
    with contextlib.suppress(BrokenPipeError):
        print(json.dumps(line), file=output, flush=True)
    os._exit(0)  # without waiting for threads of a library


if __name__ == "__main__":
    main()
