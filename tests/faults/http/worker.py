"""A server process that can be killed or frozen at named points, with one route for each promise of the middleware.

    /repeat         the effect may be repeated
    /hold           it may not: after a crash it is in doubt
    /stream         as /repeat, with a body that comes in pieces
    /hold-stream    as /hold, with a body that comes in pieces
    /once           exactly once: effect and answer in one PostgreSQL transaction

Standard input is the listening socket. Effects are counted outside: each run of one appends `key token version` to a
file; those of /once are rows beside the ledger.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from onceward.http import IdempotencyMiddleware, idempotency, idempotent
from onceward.store.open import open_store
from onceward.testing import FaultyStore, reached

PIECE = b"." * 9_000
# Larger than an entry can hold: most pieces are recorded while others are still to come.
PIECES = 12
CREATE = "CREATE TABLE IF NOT EXISTS sales (key TEXT NOT NULL, token TEXT NOT NULL)"
# PostgreSQL lets two processes that create one table at once fail; this lets one wait for the other.
LOCK = "SELECT pg_advisory_xact_lock(7)"

_tokens = itertools.count(1)


def piece(token: str, number: int) -> bytes:
    return f"{token} {number} ".encode() + PIECE


def whole_body(token: str) -> bytes:
    """Return the stream of a run with this token."""
    return b"".join(piece(token, number) for number in range(PIECES))


def new_token() -> str:
    """Return a token that no other run has, in any process."""
    return f"{os.getpid()}.{next(_tokens)}"


class Routes:
    """The handlers. Each run returns a different response."""

    def __init__(self, effects: Path, database: str, pace: float) -> None:
        self._effects = effects
        self._database = database
        self._pace = pace
        self._idle: list[psycopg.AsyncConnection] = []
        self._stopping = asyncio.Event()

    async def pause(self) -> None:
        """Wait for a random time, so that a kill can happen anywhere. A worker that stops does not wait."""
        if self._pace:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), random.uniform(0.0, self._pace))

    @asynccontextmanager
    async def living(self, _app: Starlette) -> AsyncIterator[None]:
        yield
        self._stopping.set()

    async def happen(self, request: Request) -> str:
        """Have the effect, between its two points."""
        operation = idempotency(request)
        reached("before-effect")
        await self.pause()
        token = new_token()
        file = os.open(self._effects, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(file, f"{operation.key} {token} {operation.version}\n".encode())
        os.close(file)
        reached("after-effect")
        await self.pause()
        return token

    async def answer(self, request: Request) -> Response:
        return JSONResponse({"token": await self.happen(request)}, 201)

    async def stream(self, request: Request) -> Response:
        return StreamingResponse(self._pieces(await self.happen(request)), 201)

    async def _pieces(self, token: str) -> AsyncIterator[bytes]:
        for number in range(PIECES):
            reached("streaming")
            yield piece(token, number)
            if number == PIECES // 2:
                await self.pause()

    async def once(self, request: Request) -> Response:
        operation = idempotency(request)
        token = new_token()
        async with self._connection() as connection, connection.transaction():
            bound = await operation.bind(connection)
            reached("before-effect")
            await connection.execute("INSERT INTO sales VALUES (%s, %s)", (operation.key, token))
            reached("after-effect")
            await self.pause()
            response = JSONResponse({"token": token}, 201)
            settling = bound.settle(response)
            assert settling is not None
            await settling
            reached("sale-settled")
        reached("sale-committed")
        await self.pause()
        return response

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[psycopg.AsyncConnection]:
        connection = self._idle.pop() if self._idle else await self._connect()
        try:
            yield connection
        finally:
            self._idle.append(connection)

    async def _connect(self) -> psycopg.AsyncConnection:
        connection = await psycopg.AsyncConnection.connect(self._database)
        await connection.execute(LOCK)
        await connection.execute(CREATE)
        await connection.commit()
        return connection


def make_app(how: dict[str, Any]) -> Starlette:
    routes = Routes(Path(how["effects"]), how["store"], how["pace"])
    hold = idempotent(on_crash="hold")

    async def held(request: Request) -> Response:
        return await routes.answer(request)

    async def held_stream(request: Request) -> Response:
        return await routes.stream(request)

    app = Starlette(
        routes=[
            Route("/repeat", routes.answer, methods=["POST"]),
            Route("/stream", routes.stream, methods=["POST"]),
            Route("/hold", hold(held), methods=["POST"]),
            Route("/hold-stream", hold(held_stream), methods=["POST"]),
            Route("/once", routes.once, methods=["POST"]),
        ],
        lifespan=routes.living,
    )
    store = how["store"] if not how["fault"] else FaultyStore(open_store(how["store"]))
    app.add_middleware(IdempotencyMiddleware, store=store, metrics=False, **how["options"])
    return app


def main(order: str) -> None:
    how = json.loads(order)
    random.seed()
    os.environ.update(how["fault"])
    config = uvicorn.Config(make_app(how), log_level="critical", access_log=False, timeout_graceful_shutdown=2)
    uvicorn.Server(config).run(sockets=[socket.socket(fileno=0)])
