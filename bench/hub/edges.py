"""Processor time of one request inside the hub, by layer, without a server and without sockets.

    python -m bench.hub.edges [--rounds 9] [--round-seconds 0.2]

Each middleware is called directly with a ready scope. Its own time is the difference to the middleware inside it. The
request is `GET /healthz`, and the log goes to the null device as JSON lines.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import os
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from starlette.responses import JSONResponse

from onceward.http.asgi_types import App, Message
from onceward.hub.app import create_app
from onceward.hub.config import Config, HubSettings
from onceward.hub.db.engine import open_database
from onceward.hub.db.migrate import migrate
from onceward.hub.security import tokens
from onceward.hub.security.auth import LOCAL, Credentials, authenticate
from onceward.hub.web import request_log

ROUNDS = 9
ROUND_SECONDS = 0.2
# Requests before the measurement, to fill caches, start threads and open connections.
WARM_REQUESTS = 50
# Requests between two reads of the clock.
BATCH = 20

BARE = "a bare FastAPI route"
ONE_ROUTE = "FastAPI with this route alone"
NO_LOG = "the hub, without its log lines"
HUB = "the hub"
READ = "the hub, a page of attachments"
DUPLICATE = "the hub, a duplicate attachment"
LOOKUP = "authenticate"

_ATTACHMENT = b'{"kind":"citation","value_json":{"url":"https://example.com/1","title":"A page that somebody found"}}'

Work = Callable[[], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Call:
    """A request, and the status that it must get."""

    method: str
    path: str
    body: bytes = b""
    status: int = 200

    def scope(self) -> dict[str, Any]:
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": self.method,
            "scheme": "http",
            "path": self.path,
            "raw_path": self.path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [
                (b"host", b"127.0.0.1:8787"),
                (b"user-agent", b"bench"),
                (b"accept", b"*/*"),
                (b"content-type", b"application/json"),
                (b"content-length", b"%d" % len(self.body)),
            ],
            "client": ("127.0.0.1", 50_000),
            "server": ("127.0.0.1", 8787),
            # An inner layer that is called without the outer ones finds what they would have left here.
            "state": {"principal": LOCAL, "credentials": Credentials(None, is_local=True, needed="read")},
        }


async def send(app: App, call: Call) -> bytes:
    """Send one request, and return the response's body."""
    messages: list[Message] = [{"type": "http.request", "body": call.body, "more_body": False}]
    pieces: list[bytes] = []

    async def receive() -> Message:
        return messages.pop() if messages else await asyncio.Future()

    async def collect(message: Message) -> None:
        if message["type"] == "http.response.body":
            pieces.append(message["body"])
        else:
            assert message["status"] == call.status, f"{call.method} {call.path} got {message['status']}"

    await app(call.scope(), receive, collect)
    return b"".join(pieces)


def layers_of(app: Any) -> list[tuple[str, App]]:
    """Return the middlewares from the outside in, then the application with the routes."""
    found: list[tuple[str, App]] = [(type(app).__name__, app)]
    while not hasattr(app, "routes"):
        app = app.app
        found.append((type(app).__name__, app))
    return found


async def compare(rounds: int, round_seconds: float) -> dict[str, float]:
    """Return the processor time in µs, the median of rounds that alternate."""
    with tempfile.TemporaryDirectory() as folder:
        async with _running_hub(folder) as app:
            layers = layers_of(app)
            fastapi: Any = layers[-1][1]
            health = Call("GET", "/healthz")
            topic = json.loads(await send(app, Call("POST", "/api/v1/topics", b'{"title":"Bench"}', 201)))
            attachments = f"/api/v1/topics/{topic['topic']['id']}/attachments"
            await send(app, Call("POST", attachments, _ATTACHMENT, 201))
            works = {
                BARE: _sending(_bare(), health),
                ONE_ROUTE: _sending(_one_route(fastapi, health.path), health),
                **{name: _sending(layer, health) for name, layer in reversed(layers[1:])},
                NO_LOG: _sending(app, health),
                HUB: _sending(app, health),
                READ: _sending(app, Call("GET", attachments)),
                DUPLICATE: _sending(app, Call("POST", attachments, _ATTACHMENT)),
            }
            figures = await _measure_all(works, rounds, round_seconds)
            database = fastapi.state.hub.database
            with database.write() as tx:
                _, token = tokens.create(tx, "bench", ["read"])
            credentials = Credentials(token, is_local=True, needed="read")
            return figures | await _measure_all(
                {LOOKUP: lambda: authenticate(database, credentials)}, rounds, round_seconds
            )


def _sending(app: App, call: Call) -> Work:
    return lambda: send(app, call)


def _bare() -> FastAPI:
    app = FastAPI(openapi_url=None)

    @app.get("/healthz")
    async def healthz() -> JSONResponse:
        return JSONResponse({"status": "ok"})

    return app


def _one_route(fastapi: FastAPI, path: str) -> FastAPI:
    app = FastAPI(openapi_url=None)
    app.router.routes.extend(route for route in fastapi.routes if getattr(route, "path", None) == path)
    return app


@contextlib.asynccontextmanager
async def _running_hub(folder: str) -> AsyncIterator[App]:
    config = Config(HubSettings(data_dir=folder))
    with closing(open_database(config.database_url)) as database:
        migrate(database)
    app = create_app(config)
    to_app: asyncio.Queue[Message] = asyncio.Queue()
    from_app: asyncio.Queue[Message] = asyncio.Queue()
    lifespan = asyncio.ensure_future(app({"type": "lifespan", "state": {}}, to_app.get, from_app.put))
    for event in ("startup", "shutdown"):
        await to_app.put({"type": f"lifespan.{event}"})
        assert (await from_app.get())["type"] == f"lifespan.{event}.complete"
        if event == "startup":
            yield app
    await lifespan


async def _measure_all(works: dict[str, Work], rounds: int, round_seconds: float) -> dict[str, float]:
    found: dict[str, list[float]] = {name: [] for name in works}
    for work in works.values():
        for _ in range(WARM_REQUESTS):
            await work()
    for _ in range(rounds):
        for name, work in works.items():
            logging.getLogger(request_log.LOGGER).setLevel(logging.WARNING if name == NO_LOG else logging.NOTSET)
            found[name].append(await _measure(work, round_seconds))
    return {name: statistics.median(values) for name, values in found.items()}


async def _measure(work: Work, round_seconds: float) -> float:
    """Return the processor time of one call in µs, of all threads: unlike real time, it ignores other processes."""
    began, calls = time.process_time(), 0
    while not calls or time.process_time() - began < round_seconds:
        for _ in range(BATCH):
            await work()
        calls += BATCH
    return (time.process_time() - began) / calls * 1e6


def render(figures: dict[str, float]) -> str:
    """Write the table. A layer's own time is what it adds to the row above it."""
    lines, inner = [f"{'µs':>8} {'own':>7}"], 0.0
    for name, value in figures.items():
        own = "" if name in {BARE, READ, DUPLICATE, LOOKUP} else f"{value - inner:7.1f}"
        lines.append(f"{value:8.1f} {own:7}  {name}")
        inner = value
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--round-seconds", type=float, default=ROUND_SECONDS)
    options = parser.parse_args(arguments)
    with Path(os.devnull).open("w", encoding="utf-8") as stream:
        request_log.configure("json", stream=stream)
        figures = asyncio.run(compare(options.rounds, options.round_seconds))
    print(render(figures))


if __name__ == "__main__":
    main()
