"""The demo's six routes under Quart: the ASGI middleware wraps `app.asgi_app`."""

import asyncio
from collections.abc import Callable
from typing import Any

from examples.demo.orders import Refused, parse
from examples.demo.world import Reply, World
from quart import Quart, Response, jsonify, request

from onceward.http import IdempotencyMiddleware


def make_app(world: World, store: str | None = None, **options: Any) -> Quart:
    """Create the demo, with the idempotency middleware if a store is given. `options` go to the middleware."""
    app = Quart(__name__)

    def user() -> str:
        return world.user(request.headers.get("Authorization"), request.cookies.get("session"))

    async def order() -> dict[str, object]:
        return parse(await request.body)

    @app.post("/api/dwellers/<dweller>/act")
    async def act(dweller: str) -> Response:
        return await do(world.act, user(), dweller, await order())

    @app.post("/api/dwellers/<dweller>/heartbeat")
    async def heartbeat(dweller: str) -> Response:
        return await do(world.heartbeat, user(), dweller, await order())

    @app.post("/api/stories")
    async def write_story() -> Response:
        return await do(world.write_story, user(), await order())

    @app.post("/api/proposals")
    async def propose() -> Response:
        return await do(world.propose, user(), await order())

    @app.post("/api/review/<kind>/<subject>/feedback")
    async def review(kind: str, subject: str) -> Response:
        return await do(world.review, user(), kind, subject, await order())

    @app.post("/api/auth/agent")
    async def register() -> Response:
        return await do(world.register, await order())

    @app.errorhandler(Refused)
    async def refuse(error: Refused) -> Response:
        response = jsonify(error.problem)
        response.status_code, response.mimetype = error.status, "application/problem+json"
        return response

    if store is not None:
        app.asgi_app = IdempotencyMiddleware(app.asgi_app, store=store, **options)  # type: ignore[method-assign]
    return app


async def do(action: Callable[..., Reply], *arguments: object) -> Response:
    """Run an action in a thread, because it writes to a file."""
    reply = await asyncio.to_thread(action, *arguments)
    response = jsonify(reply.content)
    response.status_code = reply.status
    return response
