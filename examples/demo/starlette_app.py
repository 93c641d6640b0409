"""The demo under Starlette. It needs one line: `app.add_middleware(IdempotencyMiddleware, store=…)`."""

from collections.abc import Callable
from typing import Any

from examples.demo.orders import Refused, parse
from examples.demo.shop import Shop
from examples.demo.world import Reply, World
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import UploadFile
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from onceward.http import IdempotencyMiddleware, idempotency, idempotent


def make_app(world: World, store: str | None = None, **options: Any) -> Starlette:
    """Create the demo, with the idempotency middleware if a store is given. `options` go to the middleware."""
    shop = Shop(store or "")

    def user(request: Request) -> str:
        return world.user(request.headers.get("authorization"), request.cookies.get("session"))

    async def act(request: Request) -> Response:
        order = parse(await request.body())
        return await do(world.act, user(request), request.path_params["dweller"], order)

    async def heartbeat(request: Request) -> Response:
        order = parse(await request.body())
        return await do(world.heartbeat, user(request), request.path_params["dweller"], order)

    async def write_story(request: Request) -> Response:
        return await do(world.write_story, user(request), parse(await request.body()))

    async def propose(request: Request) -> Response:
        return await do(world.propose, user(request), parse(await request.body()))

    async def review(request: Request) -> Response:
        kind, subject = request.path_params["kind"], request.path_params["subject"]
        return await do(world.review, user(request), kind, subject, parse(await request.body()))

    async def register(request: Request) -> Response:
        return await do(world.register, parse(await request.body()))

    async def stories(_: Request) -> Response:
        return await do(world.stories)

    async def change_story(request: Request) -> Response:
        def change(asking: str, story: str, order: dict[str, object]) -> Reply:
            return world.change_story(asking, story, order, whole=request.method == "PUT")

        return await do(change, user(request), request.path_params["story"], parse(await request.body()))

    async def delete_story(request: Request) -> Response:
        return await do(world.delete_story, user(request), request.path_params["story"])

    async def upload(request: Request) -> Response:
        async with request.form() as form:
            file = form.get("file")
            if not isinstance(file, UploadFile):
                raise Refused(400, "badRequest", "send a file in a multipart field named file")
            return await do(world.upload, user(request), file.filename or "", await file.read())

    async def tell(request: Request) -> Response:
        tale = world.tell(user(request), request.path_params["dweller"])
        return StreamingResponse(tale, media_type="text/event-stream")

    # A letter cannot be taken back. If it is unknown whether it was sent, it is not sent again.
    @idempotent(on_crash="hold", required=True)
    async def send_letter(request: Request) -> Response:
        return await do(world.send_letter, user(request), parse(await request.body()))

    # Exactly once: the sale and its response commit in one transaction.
    async def sell(request: Request) -> Response:
        operation, order = idempotency(request), parse(await request.body())

        def sale(buyer: str) -> Response:
            with shop.transaction() as connection:
                bound = operation.bind(connection)
                response = answer(shop.sell(connection, buyer, order))
                bound.settle(response)
            return response

        return await run_in_threadpool(sale, user(request))

    app = Starlette(
        routes=[
            Route("/api/dwellers/{dweller}/act", act, methods=["POST"]),
            Route("/api/dwellers/{dweller}/heartbeat", heartbeat, methods=["POST"]),
            Route("/api/dwellers/{dweller}/tell", tell, methods=["POST"]),
            Route("/api/stories", write_story, methods=["POST"]),
            Route("/api/stories", stories, methods=["GET"]),
            Route("/api/stories/{story}", change_story, methods=["PUT", "PATCH"]),
            Route("/api/stories/{story}", delete_story, methods=["DELETE"]),
            Route("/api/proposals", propose, methods=["POST"]),
            Route("/api/review/{kind}/{subject}/feedback", review, methods=["POST"]),
            Route("/api/auth/agent", register, methods=["POST"]),
            Route("/api/uploads", upload, methods=["POST"]),
            Route("/api/letters", send_letter, methods=["POST"]),
            Route("/api/sales", sell, methods=["POST"]),
        ],
        exception_handlers={Refused: refuse},
    )
    if store is not None:
        app.add_middleware(IdempotencyMiddleware, store=store, **options)
    return app


async def do(action: Callable[..., Reply], *arguments: object) -> Response:
    """Run an action in a thread, because it writes to a file."""
    return answer(await run_in_threadpool(action, *arguments))


def answer(reply: Reply) -> Response:
    if reply.content is None:
        return Response(status_code=reply.status)
    return JSONResponse(reply.content, reply.status)


def refuse(_: Request, error: Any) -> Response:
    return JSONResponse(error.problem, error.status, media_type="application/problem+json")
