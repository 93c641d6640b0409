"""The demo's first route under Quart: the ASGI middleware wraps `app.asgi_app`. The others look the same."""

import asyncio
from typing import Any

from examples.demo.orders import Refused, parse
from examples.demo.world import World
from quart import Quart, Response, jsonify, request

from onceward.http import IdempotencyMiddleware


def make_app(world: World, store: str | None = None, **options: Any) -> Quart:
    """The demo, with the idempotency middleware if a store is given; `options` are the middleware's own."""
    app = Quart(__name__)

    @app.post("/api/dwellers/<dweller>/act")
    async def act(dweller: str) -> Response:
        user = world.user(request.headers.get("Authorization"), request.cookies.get("session"))
        reply = await asyncio.to_thread(world.act, user, dweller, parse(await request.body))
        response = jsonify(reply.content)
        response.status_code = reply.status
        return response

    @app.errorhandler(Refused)
    async def refuse(error: Refused) -> Response:
        response = jsonify(error.problem)
        response.status_code, response.mimetype = error.status, "application/problem+json"
        return response

    if store is not None:
        app.asgi_app = IdempotencyMiddleware(app.asgi_app, store=store, **options)  # type: ignore[method-assign]
    return app
